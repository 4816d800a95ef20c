"""Settings changed while the broker runs: which survive a restart, and which cannot be changed.

Source: `AdminBrokerProcessor.updateBrokerConfig`. Paths and commands are refused because of
CVE-2023-33246.
"""

import json

import pytest

from rmqkit.settings.keys import rows
from rmqkit.settings.table import Type
from rmqkit.wire.codes import RequestCode, ResponseCode
from tests.broker.requests import UNIQ, records, send, with_topic
from tests.helpers.script import ScriptDisk

PATH = "config/changedSettings.json"


def update(script, *lines):
    return script.connect().ask(RequestCode.UPDATE_BROKER_CONFIG, {}, "\n".join(lines).encode())


def kept(script):
    return json.loads(script.disk.read(PATH, 0, script.disk.size(PATH)))["changed"]


def restart(make, script, *overrides):
    """Start a broker with the saved settings of another in an otherwise new folder."""
    disk = ScriptDisk()
    disk.files[PATH] = bytearray(script.disk.files[PATH])
    return make(*overrides, disk=disk)


def test_a_change_outlives_the_process(make):
    first = make()
    assert update(first, "maxMessageSize=1000", "longPollingEnable=false").code == 0
    assert kept(first) == {
        "longPollingEnable": {"value": "false", "was": "true"},
        "maxMessageSize": {"value": "1000", "was": "4194304"},
    }
    second = restart(make, first)
    assert second.node.config.send.max_message_size == 1000
    assert second.node.config.pull.long_polling_enable is False
    text = second.connect().ask(RequestCode.GET_BROKER_CONFIG).body.decode()
    assert "maxMessageSize=1000" in text.splitlines()


def test_a_configuration_that_was_changed_since_wins(make):
    first = make()
    update(first, "maxMessageSize=1000", "longPollingEnable=false")
    second = restart(make, first, "maxMessageSize=2000")
    assert second.node.config.send.max_message_size == 2000
    assert second.node.config.pull.long_polling_enable is False
    update(second, "shortPollingTimeMills=500")
    assert set(kept(second)) == {"longPollingEnable", "shortPollingTimeMills"}


def test_back_to_what_was_configured_is_not_kept(make):
    first = make("maxMessageSize=3000")
    update(first, "maxMessageSize=1000")
    update(first, "maxMessageSize=1001")
    assert kept(first) == {"maxMessageSize": {"value": "1001", "was": "3000"}}
    update(first, "maxMessageSize=3000")
    assert kept(first) == {}


@pytest.mark.parametrize(
    "entry",
    [
        {"storePathRootDir": {"value": "/tmp/x", "was": "/s"}},
        {"noSuchKey": {"value": "1", "was": ""}},
        {"maxMessageSize": {"value": "many", "was": "4194304"}},
    ],
)
def test_a_file_brings_in_nothing_that_a_request_could_not(make, entry):
    first = make()
    before = first.node.config
    update(first, "longPollingEnable=false")
    content = json.loads(first.disk.read(PATH, 0, first.disk.size(PATH)))
    content["changed"] |= entry
    first.disk.files[PATH] = bytearray(json.dumps(content).encode())
    second = restart(make, first)
    assert second.node.config.paths == before.paths
    assert second.node.config.send == before.send
    assert second.node.config.pull.long_polling_enable is False


def test_live_changes_reach_the_tables(broker):
    assert broker.node.topics.create_by_send("A", "TBW102", 4) is not None
    update(broker, "autoCreateTopicEnable=false", "autoCreateSubscriptionGroup=false", "traceOn=false")
    assert broker.node.topics.create_by_send("B", "TBW102", 4) is None
    assert broker.node.groups.get("NEW") is None
    assert b"TRACE_ON\x01false" in broker.node.view.own_properties


@pytest.mark.parametrize("row", [row for row in rows("broker").values() if row.type is Type.PATH], ids=lambda row: row.key)
def test_no_path_is_ever_live(broker, row):
    assert not row.live
    answer = update(broker, f"{row.key}=/tmp/evil;touch /tmp/evil")
    assert (answer.code, answer.remark) == (
        ResponseCode.NO_PERMISSION,
        f"config: {row.key} cannot be changed while the node runs",
    )
    assert broker.disk.size(PATH) is None


def test_a_change_that_cannot_be_written_says_so(broker):
    broker.disk.error = OSError(28, "No space left on device")
    answer = update(broker, "longPollingEnable=false")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert PATH in answer.remark
    assert broker.node.config.pull.long_polling_enable is False


@pytest.mark.parametrize("body", [b"\xff\xfe", b"a=\\u12"])
def test_what_is_no_property_text_changes_nothing(broker, body):
    answer = broker.connect().ask(RequestCode.UPDATE_BROKER_CONFIG, {}, body)
    assert answer.code == ResponseCode.NO_PERMISSION
    assert broker.connect().ask(RequestCode.UPDATE_BROKER_CONFIG).code == 0


def test_limits_that_are_kept_ready_follow(broker):
    client = with_topic(broker)
    for _ in range(70):
        send(client, i=f"{UNIQ}KEYS\x01k\x02")

    def found():
        fields = {"topic": "T", "key": "k", "maxNum": "100", "beginTimestamp": "0", "endTimestamp": str(2**62)}
        return len(records(client.ask(RequestCode.QUERY_MESSAGE, fields)))

    assert found() == 64
    update(broker, "maxMsgsNumBatch=66")
    assert found() == 66
    update(broker, "maxMsgsNumBatch=3")
    assert found() == 3

    version = broker.node.offsets.version
    update(broker, "consumerOffsetUpdateVersionStep=1")
    broker.node.offsets.commit("CG", "T", 0, 1)
    assert broker.node.offsets.version != version

    before = broker.node.store._memory_size
    update(broker, "accessMessageInMemoryMaxRatio=10")
    assert broker.node.store._memory_size == before // 4
