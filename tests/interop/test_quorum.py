"""A master without its quorum: Apache's and ours answer the same messages with the same codes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqkit import Admin
from tests.interop.acting import send_code
from tests.interop.groups import SMALL_FILES, Group
from tests.interop.until import until

TOPIC = "quorum"
QUORUM = {**SMALL_FILES, "enableSlaveActingMaster": "true", "totalReplicas": "2"}
OK, SYSTEM_ERROR = 0, 1


@pytest.fixture(params=["apache", "ours"])
def alone(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Group]:
    """Run a SYNC_MASTER that needs two replicas; its slave is never started."""
    group = Group(tmp_path, master=request.param, slave="ours", settings=QUORUM)
    try:
        group.master.start()
        yield group
    finally:
        group.close()


@pytest.mark.interop_full
def test_a_missing_quorum_refuses_only_messages_that_wait_for_copies(alone: Group) -> None:
    address = alone.master.address
    with Admin(alone.namesrv) as admin:
        admin.create_topic(TOPIC, queue_nums=1)
        until("a route of the topic", lambda: len(admin.queues(TOPIC)) == 1)
    assert send_code(address, TOPIC, "WAIT\x01true\x02") == SYSTEM_ERROR
    assert send_code(address, TOPIC, "") == SYSTEM_ERROR
    for value in ("false", "FALSE", "no"):
        assert send_code(address, TOPIC, f"WAIT\x01{value}\x02") == OK
    assert alone.master.offset_max(TOPIC, 0) == 3
