from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqkit.config import NetworkLimits
from tests.contract.labs import DiskLab, NetLab, OsDiskLab, ShellNetLab, SimDiskLab, SimNetLab
from tests.helpers.certificates import SIM_HOSTS, Certificates


@pytest.fixture(params=["os", "sim"])
def disks(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DiskLab]:
    lab: Any = OsDiskLab(tmp_path, monkeypatch) if request.param == "os" else SimDiskLab()
    yield lab
    lab.close()


@pytest.fixture(params=["shell", "tls", "sim", "sim-tls"])
def make_net(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., NetLab]]:
    """A function that makes a lab whose loop or world has the given limits."""
    labs: list[Any] = []

    def make(**limits: int) -> NetLab:
        chosen = NetworkLimits(**limits)
        lab: Any
        if request.param == "sim":
            lab = SimNetLab(chosen, request.node.name)
        elif request.param == "sim-tls":
            certificates = Certificates(tmp_path / "certificates", is_ed25519=True)
            server = certificates.pair("server", SIM_HOSTS)
            lab = SimNetLab(chosen, request.node.name, lambda: certificates.node(server))
        elif request.param == "tls":
            lab = ShellNetLab(tmp_path, chosen, Certificates(tmp_path / "certificates").node)
        else:
            lab = ShellNetLab(tmp_path, chosen)
        labs.append(lab)
        return lab

    yield make
    for lab in labs:
        lab.close()


@pytest.fixture
def net(make_net: Callable[..., NetLab]) -> NetLab:
    return make_net()
