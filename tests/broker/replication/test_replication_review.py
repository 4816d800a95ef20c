"""Corner cases of replication: double counting, endless waits, truncations, reasons in status."""

import json
from struct import pack

import pytest

from rmqkit.errors import RmqkitError
from rmqkit.runtime.connection import Address
from rmqkit.store.log.scan import MAGIC_BLANK
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.schemas.admin import ExchangeHAInfoRequest
from rmqkit.wire.schemas.send import SendMessageRequestV2
from tests.broker.replica_group import PORT, Group

MIB = 1024 * 1024


def _send_later(group: Group, body: bytes = b"x", limit_ms: int = 100_000) -> list:
    """Send a message; its answer is appended to the list."""
    found: list = []
    request = SendMessageRequestV2(
        producer_group="p", topic="T", default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
        sys_flag=0, born_timestamp=1, flag=0, properties="",
    )  # fmt: skip
    address, code = Address(group.hosts["broker-0"], PORT), int(RequestCode.SEND_MESSAGE_V2)
    group.world.call(
        "client",
        lambda client: client.remoting.call(address, code, request, body, timeout_ms=limit_ms, then=found.append),
    )
    return found


def _alone(group: Group, node: str, data: bytes) -> None:
    """Append bytes to a slave's log that its master never had."""
    group.world.call(node, lambda broker: broker.store.append_log(broker.store.offset_max, data))


# --- which connections count ----------------------------------------------------------------------


def test_a_connection_that_is_bound_again_counts_once():
    group = Group(slaves=1).in_sync()
    (link,) = group.master.replication.accept.links.values()
    request = ExchangeHAInfoRequest(
        broker_name="broker-a", broker_id=2, broker_address="10.0.1.9:10911", ha_local_address=str(link.peer)
    )
    assert group.ask("broker-0", RequestCode.EXCHANGE_BROKER_HA_INFO, request).code == 0
    assert group.master.replication.in_sync_count() == 2
    group.world.kill("broker-1")
    group.until(lambda: not group.master.replication.accept.links)
    assert group.master.replication.members.bound == {}


def test_a_slave_that_knows_the_ha_address_before_the_name_server_answers_is_bound():
    group = Group(slaves=0)
    group.until(lambda: group.master.serving)
    group.add(1, haMasterAddress=f"{group.hosts['broker-0']}:{PORT + 1}")
    group.in_sync()
    assert group.send().code == 0


def test_without_a_name_server_a_slave_follows_and_reports_that_logs_were_not_compared():
    group = Group(slaves=0)
    group.until(lambda: group.master.serving)
    group.world.kill("ns")
    group.add(1, haMasterAddress=f"{group.hosts['broker-0']}:{PORT + 1}")
    group.until(lambda: group.slave.serving and group.slave.replication.state == "following")
    assert "the logs were not compared" in group.slave.replication.why
    assert group.master.replication.in_sync_count() == 1
    group.world.restart("ns")
    group.in_sync()
    assert group.slave.replication.why == ""


def test_status_names_a_binding_whose_connection_never_arrives():
    group = Group(slaves=1, totalReplicas=2).in_sync()
    group.world.pause("broker-1")
    group.until(lambda: not group.master.replication.accept.links)
    request = ExchangeHAInfoRequest(
        broker_name="broker-a", broker_id=1, broker_address="10.0.1.2:10911", ha_local_address="192.168.7.7:4711"
    )
    assert group.ask("broker-0", RequestCode.EXCHANGE_BROKER_HA_INFO, request).code == 0
    (member,) = json.loads(group.facts("broker-0")["replicationMembers"])
    assert "192.168.7.7:4711" in member["why"]


def test_status_drops_an_outdated_reason():
    group = Group(slaves=1, totalReplicas=2).in_sync()
    accept = group.master.replication.accept
    group.world.call("broker-0", lambda _: accept._close(next(iter(accept.links.values())).conn, "an old reason"))
    group.until(lambda: not accept.links)
    group.in_sync()
    group.world.pause("broker-1")
    group.until(lambda: not accept.links)
    (member,) = json.loads(group.facts("broker-0")["replicationMembers"])
    assert member["why"] == "no HA connection"


# --- waits ----------------------------------------------------------------------------------------


def test_a_shorter_timeout_applies_to_waiting_puts():
    group = Group(slaveTimeout=60_000).in_sync()
    group.world.pause("broker-1")
    first = _send_later(group)
    group.world.run_for(100)
    group.world.call("broker-0", lambda broker: broker.apply_config(broker.config.updated({"slaveTimeout": "1000"})))
    second = _send_later(group)
    began_ms = group.world.now_ms
    group.until(lambda: first and second, 20_000)
    assert [first[0].code, second[0].code] == [12, 12]
    assert group.world.now_ms - began_ms < 2000


def test_a_put_of_the_turn_in_which_the_broker_stops_is_answered():
    group = Group(slaves=2, totalReplicas=3, slaveTimeout=60_000).in_sync(3)
    group.world.pause("broker-1")
    group.world.pause("broker-2")

    def stops(broker) -> None:
        park = broker.puts.park

        def park_and_stop(*args) -> None:
            park(*args)
            broker.stop()

        broker.puts.park = park_and_stop

    group.world.call("broker-0", stops)
    found = _send_later(group)
    group.until(lambda: found)
    assert getattr(found[0], "code", found[0]) == 12


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [512 * 1024, 2 * MIB])
def test_a_slave_with_files_of_another_size_is_refused(size: int):
    group = Group(slaves=0, inSyncReplicas=1)
    group.until(lambda: group.master.serving)
    for _ in range(20):
        group.send(bytes(100_000))
    group.add(1, mappedFileSizeCommitLog=size)
    group.until(lambda: group.slave.serving and group.slave.replication.state == "refused")
    why = group.facts("broker-1")["replicationWhy"]
    assert "mappedFileSizeCommitLog" in why
    assert str(size) in why
    assert str(MIB) in why
    assert group.slave.store.offset_written == 0


def test_a_slave_whose_next_bytes_its_master_has_removed_says_so():
    group = Group(inSyncReplicas=1).in_sync()
    group.send(b"first")
    group.until(group.same_logs)
    group.world.kill("broker-1")
    for _ in range(30):
        group.send(bytes(100_000))
    group.world.call("broker-0", lambda broker: broker.store.log.files.remove_first(lambda error: None))
    group.world.restart("broker-1")
    group.until(lambda: group.slave.serving and group.slave.replication.state == "refused")
    assert "begins at 1048576" in group.facts("broker-1")["replicationWhy"]


def test_a_slow_slave_learns_that_its_next_bytes_are_gone():
    group = Group(slaves=0, inSyncReplicas=1, haFlowControlEnable=True, maxHaTransferByteInSecond=50_000)
    group.until(lambda: group.master.serving)
    for _ in range(30):
        group.send(bytes(100_000))
    group.add(1)
    group.until(lambda: group.slave.serving and group.slave.store.offset_written > 0)
    group.world.call("broker-0", lambda broker: broker.store.log.files.remove_first(lambda error: None))
    group.until(lambda: group.slave.replication.state == "refused")
    assert "begins at 1048576" in group.facts("broker-1")["replicationWhy"]


# --- truncation -----------------------------------------------------------------------------------


def _kept() -> Group:
    """Build a master whose log had a message at its start, and a slave with haTruncateAhead."""
    group = Group(inSyncReplicas=1, haTruncateAhead=True).in_sync()
    group.send(b"kept")
    group.until(group.same_logs)
    group.world.stop("broker-0")
    group.until(lambda: not group.world.is_alive("broker-0"))
    group.world.restart("broker-0")
    return group.in_sync()


def _rest_of_file(group: Group) -> int:
    return MIB - group.slave.store.offset_max % MIB


@pytest.mark.parametrize("tail", ["part", "blank"])
def test_a_truncation_inside_a_record(tail: str):
    group = _kept()
    rest = _rest_of_file(group)
    record = bytes(group.slave.store.record(0))
    data = record[:50] if tail == "part" else pack(">II", rest, MAGIC_BLANK) + bytes(rest - 8)
    _alone(group, "broker-1", data)
    group.world.call("broker-0", lambda broker: broker.replication.accept.close_all("a test"))
    group.in_sync(1)
    group.in_sync()
    group.until(group.same_logs)
    (copy,) = group.world.disk("broker-1").list("diverged")
    assert group.world.disk("broker-1").read(f"diverged/{copy.name}", 0, copy.size) == data


def test_a_second_truncation_at_the_same_offset_keeps_the_first_copy():
    group = _kept()
    record = bytes(group.slave.store.record(0))
    for size in (60, 40):
        _alone(group, "broker-1", record[:size])
        group.world.call("broker-0", lambda broker: broker.replication.accept.close_all("a test"))
        group.in_sync(1)
        group.in_sync()
    disk = group.world.disk("broker-1")
    assert sorted(copy.size for copy in disk.list("diverged")) == [40, 60]


def test_a_foreign_log_that_is_longer_is_not_truncated():
    group = Group(slaves=0, inSyncReplicas=1, haTruncateAhead=True)
    group.until(lambda: group.master.serving)
    group.send(b"of this group")
    group.world.stop("broker-0")
    group.until(lambda: not group.world.is_alive("broker-0"))
    group.world.restart("broker-0")
    group.until(lambda: group.master.serving)
    group.add(1)
    group.until(lambda: group.slave.store.ready)
    _alone(group, "broker-1", b"of another group" * 100)
    group.until(lambda: group.slave.replication.state in ("foreign", "following"))
    assert group.slave.replication.state == "foreign"
    assert group.slave.store.offset_written == 1600


def test_a_slave_that_is_stopped_during_a_truncation_stops():
    group = _kept()
    record = bytes(group.slave.store.record(0))
    cuts: list = []

    def watch(broker) -> None:
        hold = broker.store.flush.hold

        def hold_and_stop(offset: int) -> None:
            hold(offset)
            cuts.append(offset)
            broker.stop()

        broker.store.flush.hold = hold_and_stop

    group.world.call("broker-1", watch)
    _alone(group, "broker-1", record[:50])
    group.world.call("broker-0", lambda broker: broker.replication.accept.close_all("a test"))
    group.until(lambda: cuts)
    group.until(lambda: not group.world.is_alive("broker-1"))
    group.world.restart("broker-1")
    group.in_sync()
    group.send(b"more")
    group.until(group.same_logs)


# --- reported reasons, and slaves that cannot write -----------------------------------------------


def test_a_master_that_is_starting_refuses_nobody():
    group = Group(inSyncReplicas=1).in_sync()

    def starting(broker) -> None:
        broker.remoting.unavailable = "the broker is starting"
        broker.replication.accept.close_all("a test")

    group.world.call("broker-0", starting)
    group.until(lambda: "the broker is starting" in group.slave.replication.why)
    assert group.slave.replication.state == "connecting"
    group.world.call("broker-0", lambda broker: setattr(broker.remoting, "unavailable", ""))
    group.in_sync()


def test_a_slave_whose_sync_has_failed_does_not_count():
    group = Group(slaves=1, totalReplicas=2, enableAutoInSyncReplicas=True, slaveTimeout=1000).in_sync()
    group.world.disk("broker-1").fail("sync", "/home/rmqkit/commitlog")
    group.send()
    group.until(lambda: group.slave.store.failed)
    group.world.run_for(2000)
    for _ in range(5):
        assert group.send().code == 0
        group.world.run_for(700)
    assert "could not be synced" in group.facts("broker-1")["replicationWhy"]
    assert group.master.replication.in_sync_count() == 1


def test_an_invalid_master_address_is_reported_at_the_start():
    group = Group(slaves=0, inSyncReplicas=1)
    group.add(1, haMasterAddress="host:99999")
    with pytest.raises(RmqkitError, match="haMasterAddress: 'host:99999' is not an address"):
        group.world.run_for(1000)


# --- groups with wrong or changed members ------------------------------------------------


def test_a_second_master_with_the_same_name_takes_nothing_from_the_slave():
    group = Group(inSyncReplicas=1, haTruncateAhead=True).in_sync()
    for _ in range(10):
        group.send(b"kept")
    group.until(group.same_logs)
    end = group.slave.store.offset_written
    group.add(0, name="twin")
    group.until(lambda: group.slave.replication.state == "foreign", 120_000)
    assert "no bytes would remain, and this slave has never followed this master" in group.slave.replication.why
    assert group.slave.store.offset_written == end
    assert not group.world.disk("broker-1").list("diverged")


def test_a_slave_becomes_the_master_and_the_master_its_slave():
    group = Group(inSyncReplicas=1, haTruncateAhead=True).in_sync()
    for _ in range(10):
        group.send(b"both have it")
    group.until(group.same_logs)
    group.world.kill("broker-1")
    group.send(b"the first master alone has it")
    group.world.kill("broker-0")
    group.change("broker-1", brokerRole="SYNC_MASTER", brokerId=0)
    group.change("broker-0", brokerRole="SLAVE", brokerId=1)
    group.world.restart("broker-1")
    group.until(lambda: group.slave.serving)
    for _ in range(5):
        assert group.send(b"new", node="broker-1").code == 0
    group.world.restart("broker-0")
    group.until(lambda: group.slave.replication.in_sync_count() == 2 and group.same_logs())
    (copy,) = group.world.disk("broker-0").list("diverged")
    assert b"alone has it" in group.world.disk("broker-0").read(f"diverged/{copy.name}", 0, copy.size)


def test_with_the_pool_a_slave_has_every_acknowledged_message():
    group = Group(transientStorePoolEnable=True).in_sync()
    for number in range(5):
        assert group.send(b"%d" % number).code == 0
        assert group.slave.store.offset_written == group.master.store.offset_max
    group.world.kill("broker-0")
    assert group.slave.store.queue_range("T", 0).offset_max == 5
