"""A master copies progress from one member, and an Apache master copies it from one of our slaves.

The members' answers are byte for byte those of Apache's slaves, or of ours.

Source: `BrokerPreOnlineService.{prepareForMasterOnline,syncMetadataReverse}`,
`AdminBrokerProcessor.updateBrokerHaInfo`.
"""

from zlib import crc32

import pytest

from rmqkit.broker.metadata.copied_tables import CopiedTables
from rmqkit.broker.node import Broker
from rmqkit.broker.roles.reverse_sync import HANDSHAKE_APACHE_MS, HANDSHAKE_MS, LOOK_MS, MEMBER_MS, ReverseSync
from rmqkit.runtime.connection import Address
from rmqkit.wire.codes import OwnRequestCode, RequestCode, ResponseCode
from tests.broker.metadata.test_metadata import commit, offset
from tests.broker.replica_group import Group
from tests.broker.requests import send, with_topic
from tests.helpers.script import Command, Script, write_command

HOST = "10.0.9.9"
MEMBER, MEMBER_ID = f"{HOST}:10911", 1
VERSION = '{"counter":0,"stateVersion":0,"timestamp":1}'
HA_INFO, DELAYS, TIMERS, OFFSETS = (
    RequestCode.EXCHANGE_BROKER_HA_INFO,
    RequestCode.GET_ALL_DELAY_OFFSET,
    RequestCode.GET_TIMER_CHECK_POINT,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
)
#: an Apache slave's answer: integer keys without quotes, a field that rmqkit does not have. It is
#: not asked for the progress of transactions and of pop, only ours is
APACHE = {
    HA_INFO: (0, {}, b""),
    DELAYS: (0, {}, b'{"dataVersion":%s,"offsetTable":{5:2,6:7}}' % VERSION.encode()),
    TIMERS: (0, {}, bytes(56)),
    OFFSETS: (
        0,
        {},
        (
            f'{{"dataVersion":{VERSION},"groupTopicMap":{{"CG":["T"]}},'
            '"offsetTable":{"T@CG":{0:3,1:99},"Nowhere@CG":{0:1}},"pullOffsetTable":{"T@CG":{0:4}}}'
        ).encode(),
    ),
}
#: the progress that only a member of ours is asked for; this one is older, and knows no pop
OURS = {
    OwnRequestCode.GET_TRANSACTION_PROGRESS: (0, {}, b'{"half":1,"op":0,"commits":[2]}'),
    OwnRequestCode.GET_POP_PROGRESS: (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, {}, b""),
}


class Member:
    """A master with four messages in queue 0 of `T` and three delayed ones; a scripted member."""

    def __init__(self, make, answers) -> None:
        self.script: Script[Broker] = make()
        client = with_topic(self.script)
        for _ in range(4):
            assert send(client, e="0").code == 0
        for _ in range(3):
            assert send(client, i="DELAY\x015\x02").code == 0
        self.answers = {**OURS, **answers}
        self.log: list[Command] = []
        node = self.node
        tables = CopiedTables(node.topics, node.groups, node.offsets, node.special)
        address = Address.parse(MEMBER)
        self.reverse = ReverseSync(node.context, node.store, node.replication, tables, MEMBER_ID, address)

    @property
    def node(self) -> Broker:
        return self.script.node

    def run(self, ms: int) -> None:
        for _ in range(ms // LOOK_MS):
            self.script.turn(lambda: self.reverse.step(self.script.clock.mono_ms))
            self._serve()
            self.script.advance(LOOK_MS)

    def _serve(self) -> None:
        for far_end in list(self.script.dialled):
            self.script.accept(far_end)
        for far_end in list(self.script.clients):
            for command in far_end.take() if far_end.conn.dialled else ():
                self.log.append(command)
                if command.code in self.answers:
                    code, ext, body = self.answers[command.code]
                    far_end.send(write_command(code, ext, body, opaque=command.opaque, flag=1))

    def link(self) -> None:
        """Open the member's HA connection, which reports nothing yet."""
        self.script.connect("ha", f"{HOST}:40123")

    def tail(self, size: int = 100, **changes) -> dict[str, str]:
        """Return the answer to 906 of one of our slaves with the same log."""
        end = self.node.store.offset_written
        data = bytes(self.node.store.read_log(end - size, size))
        return {
            "logEnd": str(end),
            "tailOffset": str(end - size),
            "tailSize": str(size),
            "tailCrc": str(crc32(data)),
            **changes,
        }


@pytest.fixture
def apache(make) -> Member:
    return Member(make, APACHE)


def test_progress_is_copied_from_an_apache_slave(apache):
    apache.link()
    apache.run(200)
    assert [each.code for each in apache.log] == [HA_INFO, DELAYS, TIMERS, OFFSETS]
    told = apache.log[0].ext
    assert (told["masterAddress"], told["masterHaAddress"]) == (
        apache.node.context.address_text,
        apache.node.context.ha_address_text,
    )
    assert "masterFlushOffset" in told
    assert apache.reverse.is_done
    assert apache.reverse.why == ""
    assert apache.node.view.delay.offsets.by_level == {5: 2, 6: 0}, "no further than the end of this log"
    assert apache.node.offsets.table == {"T@CG": {0: 3, 1: 0}}


def test_the_wait_for_an_apache_slaves_connection_is_bounded(apache):
    apache.run(HANDSHAKE_APACHE_MS - 500)
    assert [each.code for each in apache.log] == [HA_INFO]
    apache.run(1000)
    assert apache.reverse.is_done
    assert "no HA connection" in apache.reverse.why
    assert "delay offsets not copied" in apache.reverse.why
    assert 5 not in apache.node.view.delay.offsets.by_level
    assert apache.node.offsets.table["T@CG"][0] == 3


def test_a_slave_older_than_5_is_asked_for_progress_too(apache):
    apache.answers[HA_INFO] = (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, {}, b"")
    apache.run(200)
    assert apache.reverse.is_done
    assert apache.node.offsets.table["T@CG"][0] == 3


@pytest.mark.parametrize("code", [HA_INFO, DELAYS, TIMERS, OFFSETS])
def test_a_silent_member_is_skipped(apache, code):
    apache.link()
    del apache.answers[code]
    apache.run(MEMBER_MS + 500)
    assert apache.reverse.is_done
    assert "skipped" in apache.reverse.why


@pytest.mark.parametrize("code", [DELAYS, TIMERS, OFFSETS])
def test_an_answer_that_cannot_be_read_skips_the_member(apache, code):
    apache.link()
    apache.answers[code] = (0, {}, b"{]")
    apache.run(200)
    assert "cannot be read" in apache.reverse.why


def test_a_member_that_is_starting_is_asked_again(apache):
    apache.link()
    apache.answers[HA_INFO] = (ResponseCode.SERVICE_NOT_AVAILABLE, {}, b"")
    apache.run(1000)
    assert not apache.reverse.is_done
    apache.answers[HA_INFO] = APACHE[HA_INFO]
    apache.run(300)
    assert apache.reverse.why == ""
    assert apache.node.offsets.table["T@CG"][0] == 3


def test_a_member_of_another_group_is_skipped(apache):
    apache.answers[HA_INFO] = (ResponseCode.INVALID_PARAMETER, {}, b"")
    apache.run(200)
    assert "refuses" in apache.reverse.why
    assert apache.node.offsets.table == {}


def test_the_wait_for_the_connection_of_our_slave_is_short(make):
    member = Member(make, APACHE)
    member.answers[HA_INFO] = (0, member.tail(), b"")
    member.run(HANDSHAKE_MS + 300)
    assert member.reverse.is_done
    assert "no HA connection" in member.reverse.why
    assert member.node.view.delay.offsets.by_level[5] == 2, "its log is the same, whether it follows or not"
    assert MEMBER_ID in member.node.replication.metadata_server.waited_for


def test_nothing_is_copied_from_a_member_with_another_log(make):
    member = Member(make, APACHE)
    member.answers[HA_INFO] = (0, member.tail(tailCrc="1"), b"")
    member.run(300)
    assert "other bytes" in member.reverse.why
    assert (member.node.offsets.table, member.node.view.delay.offsets.by_level) == ({}, {})


@pytest.mark.parametrize("size", ["-5", "0", str(10**12)])
def test_an_invalid_tail_is_not_compared(make, size):
    member = Member(make, APACHE)
    member.answers[HA_INFO] = (0, member.tail(tailSize=size), b"")
    member.run(HANDSHAKE_MS + 300)
    assert member.reverse.is_same is None
    assert member.reverse.is_done


def test_delay_progress_is_not_copied_from_a_longer_log(make):
    member = Member(make, APACHE)
    end = member.node.store.offset_written
    member.answers[HA_INFO] = (0, member.tail(logEnd=str(end + 50)), b"")
    member.run(300)
    assert "longer than this one" in member.reverse.why
    assert 5 not in member.node.view.delay.offsets.by_level
    assert member.node.offsets.table == {"T@CG": {0: 3, 1: 0}}


# --- an Apache master and one of our slaves


def test_an_apache_master_that_comes_back_is_followed_and_answered(make):
    """It waits for an HA connection of this host, then for answers to 45, 43 and, on P - 2, 60."""
    script: Script[Broker] = make("brokerRole=SLAVE", "brokerId=1")
    script.node.offsets.commit("CG", "T", 0, 5)
    script.node.view.delay.offsets.update(1, 4)
    master = script.connect()
    info = {"masterHaAddress": f"{HOST}:10912", "masterFlushOffset": "0", "masterAddress": MEMBER}
    assert master.ask(HA_INFO, info).code == 0
    script.advance(100)
    assert f"{HOST}:10912" in [str(each.conn.peer) for each in script.dialled]
    assert script.node.replication.master_address == Address.parse(MEMBER)
    assert master.ask(DELAYS).json["offsetTable"] == {"1": 4}
    assert master.ask(OFFSETS).json["offsetTable"] == {"T@CG": {"0": 5}}
    vip = script.connect("vip")
    assert vip.ask(TIMERS).body == bytes(56)


@pytest.mark.parametrize(
    "info",
    [
        {"masterHaAddress": "nowhere", "masterAddress": MEMBER},
        {"masterAddress": MEMBER},
        {"masterHaAddress": f"{HOST}:10912", "masterAddress": MEMBER, "brokerName": "broker-b"},
    ],
    ids=["no address", "half", "another group"],
)
def test_a_slave_follows_no_master_that_does_not_identify_itself(make, info):
    script: Script[Broker] = make("brokerRole=SLAVE", "brokerId=1")
    assert script.connect().ask(HA_INFO, info).code == ResponseCode.INVALID_PARAMETER
    assert script.node.replication.master_address is None


def test_a_master_follows_no_broker(make):
    script: Script[Broker] = make()
    info = {"masterHaAddress": f"{HOST}:10912", "masterFlushOffset": "0", "masterAddress": MEMBER}
    assert script.connect().ask(HA_INFO, info).code == ResponseCode.INVALID_PARAMETER


# --- a slave whose log was truncated


def test_offsets_in_a_truncated_part_go_back_to_the_queue_end(monkeypatch):
    """Otherwise they would skip new messages of the master at the same offsets.

    They would skip them here, and also at the master, once the slave has sent them there.
    """
    group = Group(haTruncateAhead=True).in_sync()
    for _ in range(8):
        group.send()
    group.until(group.same_logs)
    commit(group, 8)
    group.world.run_for(7000)
    group.slave.view.delay.offsets.update(1, 5)
    group.world.lose_disk("broker-0")
    group.world.run_for(500)
    group.world.restart("broker-0")
    group.world.restart("client")
    group.until(lambda: group.master.serving)
    group.until(lambda: group.slave.store.offset_written == 0)
    group.until(lambda: offset(group, "broker-1") == 0 and group.slave.view.delay.offsets.by_level == {1: 0})
    group.in_sync()
    for _ in range(9):
        group.send()
    group.world.run_for(3000)
    assert offset(group, "broker-0") <= 0


def test_offsets_go_back_after_a_kill_during_a_truncation(monkeypatch):
    group = Group(haTruncateAhead=True).in_sync()
    for _ in range(8):
        group.send()
    group.until(group.same_logs)
    commit(group, 8)
    group.world.run_for(7000)
    follow = group.slave.replication.follow
    monkeypatch.setattr(follow._truncation, "resume", lambda: None)
    group.world.lose_disk("broker-0")
    group.world.run_for(500)
    group.world.restart("broker-0")
    group.until(lambda: group.slave.store.offset_written == 0)
    assert offset(group, "broker-1") == 8
    group.world.kill("broker-1")
    group.world.restart("broker-1")
    group.until(lambda: group.slave.serving)
    assert offset(group, "broker-1") == 0
