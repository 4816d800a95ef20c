from pathlib import Path

import pytest

from tests.helpers.certificates import Certificates


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Certificates that no test changes."""
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def own_certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "certificates")
