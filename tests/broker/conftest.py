"""Fixtures: a broker driven by hand, on the mapped engine unless the test names another."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rmqkit import plugins
from rmqkit.broker.node import Broker
from rmqkit.config import load
from rmqkit.runtime.ports import Ports
from tests.helpers.script import Script

MakeScript = Callable[..., Script[Broker]]
BUILT_IN = plugins.load(entry_points=False)


def broker_of(*overrides: str, engine: str = "mapped") -> Callable[[Ports], Broker]:
    small = ["mappedFileSizeCommitLog=1048576", "mappedFileSizeConsumeQueue=6000", "maxHashSlotNum=100", "maxIndexNum=400"]
    values = [
        "brokerName=broker-a",
        "brokerIP1=127.0.0.1",
        "brokerIP2=127.0.0.1",
        "storePathRootDir=/s",
        f"storageEngine={engine}",
    ]
    config = load([], [*values, *small, *overrides], "broker")
    return lambda ports: Broker("broker-a-0", ports, config, BUILT_IN.broker_parts(config))


@pytest.fixture
def make() -> Iterator[MakeScript]:
    """Return a function that starts a serving broker; check the invariants of all at the end."""
    scripts: list[Script[Broker]] = []

    def make_script(*overrides: str, engine: str = "mapped", **script: Any) -> Script[Broker]:
        made = Script(broker_of(*overrides, engine=engine), **script)
        made.turn()
        scripts.append(made)
        assert made.node.serving
        return made

    yield make_script
    for script in scripts:
        validate(script.node)


@pytest.fixture
def broker(make: MakeScript) -> Script[Broker]:
    return make()


def validate(node: Broker) -> None:
    """Check the invariants of a broker between two turns."""
    assert not node.puts._turn, "a put of the last turn was not answered"
    waiting = sum(len(each) for each in node.view.arrivals.by_key.values())
    assert waiting == node.view.arrivals.count
    members = sum(len(group.members) for group in node.clients.consumers.values())
    members += sum(len(each) for each in node.clients.producers.values())
    assert members == node.clients.count
    assert not node.clients.changed, "a changed group was not told"
    for queues in node.offsets.table.values():
        assert all(isinstance(queue_id, int) for queue_id in queues)
