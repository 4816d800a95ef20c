"""A name server driven turn by turn. When a test ends, the invariants of its tables are checked."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rmqkit.config import from_values
from rmqkit.nameserver.names import TableLimits
from rmqkit.nameserver.node import NameServer
from tests.helpers.script import Script, ScriptDisk

NameServerScript = Script[NameServer]
Make = Callable[..., NameServerScript]


@pytest.fixture
def make_ns() -> Iterator[Make]:
    """Return a function that makes a name server: `make_ns(needWaitForService=True, ...)`.

    Settings have Apache's keys; `limits`, `disk` and `start` are keywords too.
    """
    made: list[NameServerScript] = []

    def make(
        *, limits: TableLimits | None = None, disk: ScriptDisk | None = None, start: bool = True, **settings: Any
    ) -> NameServerScript:
        values = {"kvConfigPath": "/ns/kvConfig.json", "configStorePath": "/ns/namesrv.properties", **settings}
        config = from_values("nameserver", values)
        made.append(Script(lambda ports: NameServer("ns-0", ports, config, limits=limits), disk=disk, start=start))
        return made[-1]

    yield make
    for script in made:
        script.node.routes.validate()
        script.node.kv.validate()


@pytest.fixture
def ns(make_ns: Make) -> NameServerScript:
    return make_ns()
