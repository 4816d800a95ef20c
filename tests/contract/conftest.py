from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqkit.config import NetworkLimits
from tests.contract.labs import DiskLab, NetLab, OsDiskLab, ShellNetLab, SimDiskLab, SimNetLab


@pytest.fixture(params=["os", "sim"])
def disks(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DiskLab]:
    lab: Any = OsDiskLab(tmp_path, monkeypatch) if request.param == "os" else SimDiskLab()
    yield lab
    lab.close()


@pytest.fixture(params=["shell", "sim"])
def make_net(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., NetLab]]:
    """A function that makes a lab whose loop or world has the given limits."""
    labs: list[Any] = []

    def make(**limits: int) -> NetLab:
        chosen = NetworkLimits(**limits)
        lab: Any = ShellNetLab(tmp_path, chosen) if request.param == "shell" else SimNetLab(chosen, request.node.name)
        labs.append(lab)
        return lab

    yield make
    for lab in labs:
        lab.close()


@pytest.fixture
def net(make_net: Callable[..., NetLab]) -> NetLab:
    return make_net()
