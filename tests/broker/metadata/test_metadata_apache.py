"""A slave copies the tables of an Apache master, which knows none of our fields.

The master's answers are byte for byte those of Apache's master.

Source: `broker/.../slave/SlaveSynchronize.syncAll`, `broker/.../out/BrokerOuterAPI.java`.
"""

import json

import pytest

from rmqkit.broker.node import Broker
from rmqkit.runtime.connection import Address
from rmqkit.store.contract import Put, PutStatus
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.topic_names import SCHEDULE_TOPIC
from tests.helpers.script import Client, Command, Script, write_command

MASTER = "10.0.9.9:10911"
VIP = "10.0.9.9:10909"
VERSION = '{"counter":5,"stateVersion":0,"timestamp":1700000000000}'
OFFSETS = (
    '{"dataVersion":%s,"groupTopicMap":{"CG":["T"]},"offsetTable":{"T@CG":{0:%d,1:4}},"pullOffsetTable":{"T@CG":{0:9,1:9}}}'
)
TOPIC = {"perm": 6, "readQueueNums": 4, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "writeQueueNums": 4}
SYNC_MS = 10_000
HOST = bytes((127, 0, 0, 1, 0, 0, 0, 1))


def topics(*names: str, version: str = VERSION) -> bytes:
    table = {name: {**TOPIC, "topicName": name} for name in names}
    return f'{{"dataVersion":{version},"mappingDataVersion":{VERSION},"topicConfigTable":{json.dumps(table)}}}'.encode()


class Master:
    """A scripted Apache master; `answers` maps each code to (ext, body)."""

    def __init__(self, script: Script[Broker], *down: str) -> None:
        self.script = script
        self.down = set(down)
        #: (address, code) of every request, in order
        self.log: list[tuple[str, int]] = []
        self.answers: dict[int, tuple[dict, bytes]] = {
            RequestCode.GET_ALL_CONSUMER_OFFSET: ({}, (OFFSETS % (VERSION, 7)).encode()),
            RequestCode.GET_ALL_TOPIC_CONFIG: ({"totalTopicNum": "1"}, topics("T")),
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: (
                {"totalGroupNum": "1"},
                f'{{"dataVersion":{VERSION},"forbiddenTable":{{}},'
                '"subscriptionGroupTable":{"CG":{"groupName":"CG","retryMaxTimes":3}}}'.encode(),
            ),
            RequestCode.GET_ALL_DELAY_OFFSET: ({}, b'{"offsetTable":{2:5}}'),
            RequestCode.GET_TIMER_CHECK_POINT: ({}, bytes(56)),
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: ({}, b'{"messageRequestModeMap":{"T":{"CG":{"mode":"POP"}}}}'),
        }
        script.node.replication.follow.master = Address.parse(MASTER)
        self.run(1000)

    def run(self, ms: int) -> None:
        for _ in range(ms // 100):
            self.script.advance(100)
            while self._dials() or self._requests():
                pass

    def _dials(self) -> bool:
        for far_end in list(self.script.dialled):
            if str(far_end.conn.peer) in self.down:
                self.script.refuse(far_end)
            else:
                self.script.accept(far_end)
            return True
        return False

    def _requests(self) -> bool:
        moved = False
        for far_end in list(self.script.clients):
            for command in far_end.take():
                moved = True
                self._answer(far_end, command)
        return moved

    def _answer(self, far_end: Client, command: Command) -> None:
        self.log.append((str(far_end.conn.peer), command.code))
        if command.code in self.answers:
            ext, body = self.answers[command.code]
            far_end.send(write_command(0, ext, body, opaque=command.opaque, flag=1))

    def asked(self) -> list[int]:
        codes = [code for _, code in self.log if code in self.answers]
        self.log.clear()
        return codes


@pytest.fixture
def script(make) -> Script[Broker]:
    return make("brokerRole=SLAVE", "brokerId=1")


@pytest.fixture
def master(script: Script[Broker]) -> Master:
    return Master(script)


def test_everything_is_asked_for_every_ten_seconds(script, master):
    first = master.log.copy()
    assert (VIP, RequestCode.GET_ALL_TOPIC_CONFIG) in first
    assert (MASTER, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG) in first
    everything = master.asked()
    assert everything == [43, 21, 201, 45, 60, 402]
    master.run(SYNC_MS - 1500)
    assert not master.asked()
    master.run(1500)
    assert master.asked() == everything


def test_tables_from_the_master_are_stored_with_their_versions(script, master):
    node = script.node
    assert node.offsets.table == {"T@CG": {0: 7, 1: 4}}
    assert node.topics.by_name["T"].write_queue_nums == 4
    assert node.groups.by_name["CG"].retry_max_times == 3
    assert node.replication.request_modes.get("T", "CG").mode == "POP"
    for version in (node.topics.version, node.groups.version, node.offsets.version):
        assert version.encode().decode() == VERSION
    assert b"POP" in script.disk.files["config/messageRequestMode.json"]
    assert set(node.topics.system) <= set(node.topics.by_name), "what the slave needs itself stays"


def delay(script: Script[Broker], level: int, count: int) -> None:
    """Append `count` delayed messages of a level to the slave's log."""
    for _ in range(count):
        put = Put(SCHEDULE_TOPIC, level - 1, 0, 0, 0, HOST, HOST, 0, 0, b"later", b"", 0)
        assert script.node.store.append(put).status is PutStatus.PUT_OK
    script.turn()


def test_delay_offsets_never_pass_the_end_of_the_queue(script, master):
    """A wiped slave gets only the last log file of an Apache master.

    So it may have only a part of a level's queue, or none of it.
    """
    master.answers[RequestCode.GET_ALL_DELAY_OFFSET] = {}, f'{{"dataVersion":{VERSION},"offsetTable":{{2:5,3:4}}}}'.encode()
    delay(script, 2, 3)
    master.run(2 * SYNC_MS)
    offsets = script.node.view.delay.offsets
    assert offsets.by_level == {2: 3, 3: 0}
    assert offsets.version.counter == 0, "an Apache master that returns must not take this for its own table"
    delay(script, 2, 3)
    delay(script, 3, 4)
    master.run(2 * SYNC_MS)
    assert offsets.by_level == {2: 5, 3: 4}
    assert offsets.version.encode().decode() == VERSION


def test_delay_offsets_count_a_round_later(script, master):
    """The answer does not say where the master's log ended, so it applies one round later."""
    delay(script, 2, 5)
    assert script.node.view.delay.offsets.by_level == {}
    master.run(SYNC_MS)
    assert script.node.view.delay.offsets.by_level == {2: 5}
    master.answers[RequestCode.GET_ALL_DELAY_OFFSET] = {}, b'{"offsetTable":{2:4}}'
    master.run(2 * SYNC_MS)
    assert script.node.view.delay.offsets.by_level == {2: 5}


def test_offsets_do_not_go_back(script, master):
    master.answers[RequestCode.GET_ALL_CONSUMER_OFFSET] = {}, (OFFSETS % (VERSION, 3)).encode()
    master.run(SYNC_MS)
    assert script.node.offsets.table["T@CG"][0] == 7


@pytest.mark.parametrize(
    "answer",
    [
        ({"totalTopicNum": "0"}, topics(version=VERSION.replace("5", "9"))),
        ({"totalTopicNum": "7"}, topics("U", version=VERSION.replace("5", "9"))),
        ({"totalTopicNum": "1"}, topics("U", version=VERSION.replace("5", "4"))),
        ({}, b"{"),
    ],
    ids=["empty", "not whole", "older", "unreadable"],
)
def test_nothing_is_deleted_for_an_answer_that_proves_nothing(script, master, answer):
    master.answers[RequestCode.GET_ALL_TOPIC_CONFIG] = answer
    master.run(SYNC_MS + 1000)
    assert "T" in script.node.topics.by_name
    assert "U" not in script.node.topics.by_name
    master.answers[RequestCode.GET_ALL_TOPIC_CONFIG] = (
        {"totalTopicNum": "1"},
        topics("V", version=VERSION.replace("5", "9")),
    )
    master.run(SYNC_MS + 1000)
    assert "V" in script.node.topics.by_name
    assert "T" not in script.node.topics.by_name


def test_a_master_without_the_second_port_is_asked_at_the_first(script):
    master = Master(script, VIP)
    assert (MASTER, RequestCode.GET_ALL_TOPIC_CONFIG) in master.log
    assert "T" in script.node.topics.by_name


def test_a_master_that_refuses_is_asked_again_and_the_reason_is_told(script, master):
    del master.answers[RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG]
    master.down.update((MASTER, VIP))
    for far_end in [each for each in script.clients if each.conn.dialled]:
        script.close(far_end, "connection reset by peer")
    master.run(SYNC_MS)
    assert "gave no answer" in script.node.view.facts()["metadataWhy"]
    master.down.clear()
    master.answers[RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG] = {"totalGroupNum": "0"}, b'{"dataVersion":{}}'
    master.run(2000)
    assert script.node.view.facts()["metadataWhy"] == ""
    assert "CG" in script.node.groups.by_name


def test_versions_that_nobody_counted_agree_too(script):
    """The version of a new broker is its start time, which is later at the slave."""
    master = Master(script, MASTER, VIP)
    version = '{"counter":0,"stateVersion":0,"timestamp":1600000000000}'
    master.answers[RequestCode.GET_ALL_CONSUMER_OFFSET] = {}, (OFFSETS % (version, 7)).encode()
    master.down.clear()
    master.run(2000)
    assert script.node.offsets.version.encode().decode() == version
