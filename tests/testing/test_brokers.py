"""`SimBroker`, the broker in virtual time for authors of plug-ins."""

import pytest

from rmqkit.errors import ConfigError
from rmqkit.testing import SimBroker
from rmqkit.wire.codes import RequestCode, ResponseCode


def end_of(broker: SimBroker, topic: str = "T") -> int:
    return int(broker.ask(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": "0"}).ext["offset"])


@pytest.mark.parametrize("engine", ["mapped", "memory"])
def test_messages_are_stored_and_time_passes_at_once(engine):
    broker = SimBroker(f"storageEngine={engine}")
    before_ms = broker.now_ms
    for _ in range(3):
        broker.send("T", b"hello", properties={"TAGS": "a"})
    broker.advance(3_600_000)
    assert end_of(broker) == 3
    assert broker.now_ms - before_ms >= 3_600_000


def test_what_was_written_survives_stop_and_kill():
    broker = SimBroker()
    first_life = broker.node
    broker.send("T", b"hello")
    broker.stop()
    broker.start()
    assert broker.node is not first_life
    broker.send("T", b"hello")
    broker.kill()
    broker.start()
    assert end_of(broker) == 2


def test_what_was_synced_survives_a_crash():
    broker = SimBroker("flushDiskType=SYNC_FLUSH")
    broker.send("T", b"hello")
    broker.crash()
    broker.start()
    assert end_of(broker) == 1


def test_topics_are_made_and_removed():
    broker = SimBroker()
    broker.create_topic("T", 2)
    assert broker.node.topics.get("T").write_queue_nums == 2
    broker.delete_topic("T")
    assert broker.node.topics.get("T") is None


def test_an_answer_is_given_whatever_its_code_but_a_send_must_succeed():
    broker = SimBroker("autoCreateTopicEnable=false")
    assert broker.ask(71_999).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    with pytest.raises(AssertionError, match="refused with"):
        broker.send("T", b"hello")


def test_files_and_log_lines_can_be_looked_at():
    broker = SimBroker()
    broker.create_topic("T")
    broker.advance(1_000)
    assert b'"T"' in broker.file("config/topics.json")
    with pytest.raises(FileNotFoundError):
        broker.file("config/nothing.json")
    assert [line["address"] for line in broker.log_lines("serving")] == ["10.0.0.1:10911"]


def test_a_bad_configuration_is_said_at_once():
    with pytest.raises(ConfigError, match="did you mean"):
        SimBroker("storageEngine=memori")
