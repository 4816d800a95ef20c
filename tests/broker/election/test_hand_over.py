"""What a new master goes on with: consumer offsets, delayed messages, topics; and the way back."""

import pytest

from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.fastjson import MessageQueue
from rmqkit.wire.msgid import RecallHandle
from rmqkit.wire.schemas.offsets import QueryConsumerOffsetRequest, UpdateConsumerOffsetRequest
from rmqkit.wire.schemas.pull import PullMessageRequest
from rmqkit.wire.schemas.send import RecallMessageRequest
from tests.broker.elected_group import ElectedGroup

OK = 0


def commit(group: ElectedGroup, node: str, offset: int) -> None:
    request = UpdateConsumerOffsetRequest(consumer_group="TOOLS_CONSUMER", topic="T", queue_id=0, commit_offset=offset)
    assert group.ask(node, RequestCode.UPDATE_CONSUMER_OFFSET, request).code == OK


def committed(group: ElectedGroup, node: str) -> str:
    request = QueryConsumerOffsetRequest(consumer_group="TOOLS_CONSUMER", topic="T", queue_id=0)
    return group.ask(node, RequestCode.QUERY_CONSUMER_OFFSET, request).ext["offset"]


def test_consumer_offsets_survive_the_master():
    group = ElectedGroup()
    old = group.settled()
    new = group.other(old)
    for _ in range(5):
        group.send(node=old)
    commit(group, old, 3)
    group.world.run_for(1000)
    group.world.kill(old)
    group.until(lambda: group.master_names() == [new])
    assert committed(group, new) == "3"


def test_a_new_master_takes_newer_offsets_from_live_members():
    group = ElectedGroup(brokers=3)
    old = group.settled(count=3)
    for _ in range(5):
        group.send(node=old)
    group.until(lambda: group.same_logs(*group.hosts))
    first, second = (each for each in group.hosts if each != old)
    # Only one of the slaves has the last commit when the master dies.
    group.world.net.partition([old], [first])
    commit(group, old, 4)
    group.world.run_for(700)
    group.world.kill(old)
    group.world.net.heal()
    group.until(lambda: len(group.master_names()) == 1 and group.master_names() != [old])
    assert group.master_names()[0] in (first, second)
    assert committed(group, group.master_names()[0]) == "4"


def test_an_old_master_takes_offsets_only_once_its_log_is_the_masters():
    """Else its truncation would take them back to the end of its queue."""
    group = ElectedGroup()
    old = group.settled()
    new = group.other(old)
    for _ in range(3):
        group.send(node=old)
    commit(group, old, 3)
    group.world.run_for(1000)
    group.world.net.partition([old], [new])
    group.send(b"not acknowledged" * 1000, node=old)
    group.world.kill(old)
    group.world.net.heal()
    group.until(lambda: group.master_names() == [new])
    for _ in range(10):
        assert group.send(node=new).code == OK
    commit(group, new, 10)
    group.world.restart(old)
    held: list[int] = []

    def is_done() -> bool:
        table = group.node(old).view.offsets.table.get("T@TOOLS_CONSUMER", {})
        held.append(table.get(0, -1))
        return held[-1] == 10 and group.same_logs()

    group.until(is_done)
    assert group.world.log(old).events("log-cut")
    assert held == sorted(held)


def test_a_delayed_message_is_delivered_once_by_the_new_master():
    group = ElectedGroup()
    old = group.settled()
    new = group.other(old)
    assert group.send(b"now", node=old).code == OK
    assert group.send(b"later", node=old, properties="DELAY\x013\x02").code == OK
    group.world.kill(old)
    group.until(lambda: group.master_names() == [new])
    store = group.node(new).store
    assert store.queue_range("T", 0).offset_max == 1
    group.until(lambda: store.queue_range("T", 0).offset_max == 2)
    group.world.restart(old)
    assert group.settled() == new
    group.world.run_for(20_000)
    assert store.queue_range("T", 0).offset_max == 2
    group.until(lambda: group.same_logs())


def test_a_master_without_a_lease_delivers_nothing():
    group = ElectedGroup()
    old = group.settled()
    new = group.other(old)
    group.send(b"now", node=old)
    group.send(b"later", node=old, properties="DELAY\x013\x02")
    group.until(lambda: group.same_logs())
    group.world.net.isolate(old)
    group.until(lambda: new in group.master_names())
    group.until(lambda: group.node(new).store.queue_range("T", 0).offset_max == 2)
    group.world.net.heal()
    assert group.settled() == new
    group.until(lambda: group.same_logs())
    group.world.run_for(20_000)
    assert group.node(new).store.queue_range("T", 0).offset_max == 2


def recall(group: ElectedGroup, node: str):
    """Ask `node` to take back a timer that is due in 60 s."""
    due = str(group.node(node).clock.wall_ms + 60_000)
    handle = RecallHandle("T", "broker-a", due, "7F00000109414AD959F78B02FD9B012C").encode()
    request = RecallMessageRequest(producer_group="p", topic="T", recall_handle=handle)
    return group.ask(node, RequestCode.RECALL_MESSAGE, request)


def test_a_master_without_a_lease_takes_no_timer_back():
    """It would answer SUCCESS for a marker that the next master does not have."""
    group = ElectedGroup(recallMessageEnable=True)
    old = group.settled()
    assert group.send(node=old).code == OK
    assert recall(group, old).code == OK
    group.world.net.partition([old], ["ctl"])
    group.until(lambda: group.election(old).is_lease_over)
    reply = recall(group, old)
    assert (reply.code, "another one may be elected" in reply.remark) == (ResponseCode.SERVICE_NOT_AVAILABLE, True)


@pytest.mark.parametrize(("all_ack", "code"), [(True, ResponseCode.SYSTEM_ERROR), (False, OK)])
def test_a_recall_that_a_slave_lacks_is_unknown_if_it_must_survive(all_ack, code):
    group = ElectedGroup(recallMessageEnable=True, allAckInSyncStateSet=all_ack, inSyncReplicas=2)
    old = group.settled()
    assert group.send(node=old).code == OK
    group.world.net.partition([old], ["ctl", group.other(old)])
    reply = recall(group, old)
    assert reply.code == code
    assert "FLUSH_SLAVE_TIMEOUT" in (reply.remark or "") or not all_ack


def test_a_pull_that_waits_at_the_old_master_is_answered():
    group = ElectedGroup()
    old = group.settled()
    new = group.other(old)
    assert group.send(node=old).code == OK
    request = PullMessageRequest(
        consumer_group="TOOLS_CONSUMER", topic="T", queue_id=0, queue_offset=1, max_msg_nums=1, sys_flag=6, commit_offset=0,
        suspend_timeout_millis=60_000, subscription="*", sub_version=0, expression_type="TAG",
    )  # fmt: skip
    found: list = []
    network = group.node(old).context.address

    def ask(client) -> None:
        client.remoting.call(network, RequestCode.PULL_MESSAGE, request, timeout_ms=120_000, then=found.append)

    group.world.call("client", ask)
    group.world.run_for(500)
    assert not found
    group.world.net.partition([old], ["ctl"])
    group.until(lambda: new in group.master_names())
    group.world.net.heal()
    assert group.settled() == new
    group.until(lambda: found, 5000)


def test_a_slave_answers_sends_like_one():
    group = ElectedGroup()
    master = group.settled()
    reply = group.send(node=group.other(master))
    assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "is a slave" in reply.remark


def test_a_clean_stop_hands_over_at_once():
    group = ElectedGroup()
    old = group.settled()
    new = group.other(old)
    group.send(node=old)
    began_ms = group.world.now_ms
    group.world.stop(old)
    group.until(lambda: new in [each for each in group.hosts if group.world.is_alive(each)] and new in group.master_names())
    assert group.world.now_ms - began_ms < 1000


def test_a_master_that_is_elected_again_has_forgotten_its_locks():
    """Until they had run out, no member of the group could have consumed in order (seed 1734)."""
    group = ElectedGroup()
    first = group.settled()
    second = group.other(first)
    queue = MessageQueue("T", "broker-a", 0)

    def lock(name: str, client_id: str) -> list[MessageQueue] | None:
        broker = group.node(name)
        return broker.view.leases.lock("CG", client_id, [queue], broker.clock.mono_ms)

    def elect(name: str) -> None:
        address = str(group.node(name).context.address)
        number = next(each for each, known in group.data.addresses.items() if known == address)
        group.until(lambda: sorted(group.data.in_sync) == [1, 2])
        group.world.call("ctl", lambda controller: controller.elect(number))
        group.until(lambda: group.master_names() == [name])

    assert lock(first, "one") == [queue]
    assert lock(first, "two") == []
    elect(second)
    assert lock(second, "two") == [queue]
    elect(first)
    assert lock(first, "two") == [queue]
