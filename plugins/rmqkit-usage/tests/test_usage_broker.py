"""The plug-in on a broker in virtual time: rounds, requests, restarts, limits."""

import subprocess
import sys

import pytest

from rmqkit import plugins
from rmqkit.errors import ConfigError
from rmqkit.testing import SimBroker
from rmqkit.wire.codes import ResponseCode
from rmqkit_usage import sampler
from rmqkit_usage.protocol import GET_USAGE, UsageBody

MINUTE = 60_000


def broker_with(*settings: str) -> SimBroker:
    return SimBroker("plugins=usage", *settings, modules=["rmqkit_usage.plugin"])


@pytest.fixture
def broker() -> SimBroker:
    return broker_with()


def ask(broker: SimBroker, **fields: str) -> UsageBody:
    answer = broker.ask(GET_USAGE, fields)
    assert answer.is_ok, answer
    return UsageBody.decode(answer.body)


def grown(broker: SimBroker, **fields: str) -> dict[str, int]:
    return {topic.topic: topic.added for topic in ask(broker, **fields).topics}


def send(broker: SimBroker, topic: str, count: int, body: bytes = b"x" * 100) -> None:
    for number in range(count):
        broker.send(topic, body, queue_id=number % 4)


def test_a_round_counts_what_came_since_the_last(broker):
    send(broker, "T", 10)
    broker.advance(MINUTE)
    assert grown(broker) == {"T": 10}
    send(broker, "T", 5)
    send(broker, "U", 7)
    assert grown(broker) == {"T": 10}, "no round in between"
    broker.advance(MINUTE)
    assert grown(broker) == {"T": 15, "U": 7}
    assert grown(broker, sinceMillis=str(MINUTE)) == {"U": 7, "T": 5}


def test_the_answer_has_all_figures_of_a_topic(broker):
    before_ms = broker.now_ms
    send(broker, "T", 10)
    broker.advance(2 * MINUTE)
    answer = ask(broker)
    (topic,) = answer.topics
    assert (answer.broker_name, answer.interval_millis, answer.left_out) == ("broker-a", MINUTE, 0)
    assert (topic.topic, topic.queues, topic.messages, topic.kept, topic.added) == ("T", 4, 10, 10, 10)
    assert topic.points is None
    assert topic.from_millis <= before_ms < topic.grown_millis <= answer.round_millis <= broker.now_ms


def test_bytes_are_exact_for_few_messages_and_estimated_for_many(broker):
    send(broker, "T", 8)
    broker.advance(MINUTE)
    size = broker.node.store.offset_max
    assert ask(broker).topics[0].size_added == size, "the log holds nothing else"
    for _ in range(100):
        broker.send("T", b"y" * 1_000)
    broker.advance(MINUTE)
    written = broker.node.store.offset_max - size
    estimated = ask(broker, topic="T", sinceMillis=str(MINUTE)).topics[0].size_added
    assert estimated == written, "all hundred have the same size"


def test_filters(broker):
    for topic, count in (("orders-a", 3), ("orders-b", 5), ("audit", 9)):
        send(broker, topic, count)
    broker.advance(MINUTE)
    assert list(grown(broker).items()) == [("audit", 9), ("orders-b", 5), ("orders-a", 3)]
    assert grown(broker, topic="orders-*") == {"orders-b": 5, "orders-a": 3}
    assert grown(broker, topic="audit") == {"audit": 9}
    assert grown(broker, topic="nothing") == {}
    assert list(grown(broker, top="1")) == ["audit"]
    assert list(grown(broker, topic="orders-*", top="1")) == ["orders-b"]


def test_the_broker_s_own_topics_only_when_asked_for(broker):
    send(broker, "T", 1)
    broker.send("BenchmarkTest", b"x")
    broker.advance(MINUTE)
    assert grown(broker) == {"T": 1}
    assert grown(broker, system="true") == {"BenchmarkTest": 1, "T": 1}
    assert grown(broker, topic="BenchmarkTest") == {"BenchmarkTest": 1}


def test_steps_of_one_topic(broker):
    for count in (2, 0, 3):
        send(broker, "T", count)
        broker.advance(MINUTE)
    (topic,) = ask(broker, topic="T", points="true").topics
    assert [messages for _, messages, _ in topic.points] == [0, 2, 5]
    refused = broker.ask(GET_USAGE, {"points": "true"})
    assert refused.code == ResponseCode.INVALID_PARAMETER
    assert broker.ask(GET_USAGE, {"points": "true", "topic": "T*"}).code == ResponseCode.INVALID_PARAMETER


@pytest.mark.parametrize("fields", [{"sinceMillis": "0"}, {"sinceMillis": "x"}, {"top": "0"}, {"top": "-1"}])
def test_fields_that_make_no_sense_are_refused(broker, fields):
    answer = broker.ask(GET_USAGE, fields)
    assert not answer.is_ok
    assert next(iter(fields)) in answer.remark
    assert broker.ask(GET_USAGE).is_ok, "the broker still serves"


def test_before_the_first_round_there_is_nothing_to_tell():
    broker = broker_with()
    broker.stop()
    broker.start()
    assert ask(broker).topics == []


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_the_history_survives_the_broker(broker, end):
    send(broker, "T", 6)
    broker.advance(2 * MINUTE)
    send(broker, "T", 4)
    getattr(broker, end)()
    broker.start()
    assert grown(broker) == {"T": 10}, "the first round counts the messages since the last one"
    broker.advance(MINUTE)
    send(broker, "T", 1)
    broker.advance(MINUTE)
    assert grown(broker) == {"T": 11}


def test_a_deleted_topic_is_forgotten_and_a_new_one_of_its_name_begins_anew(broker):
    send(broker, "T", 6)
    broker.advance(MINUTE)
    broker.delete_topic("T")
    broker.advance(MINUTE)
    assert grown(broker) == {}
    send(broker, "T", 2)
    broker.advance(MINUTE)
    assert grown(broker) == {"T": 2}


def test_a_topic_that_is_made_again_between_two_rounds(broker):
    send(broker, "T", 6)
    broker.advance(MINUTE)
    broker.delete_topic("T")
    broker.create_topic("T", 1)
    end = broker.node.store.offset_max
    broker.send("T", b"x")
    broker.advance(MINUTE)
    assert grown(broker) == {"T": 1}
    assert ask(broker).topics[0].size_added == broker.node.store.offset_max - end


def test_fewer_queues_lose_nothing(broker):
    broker.create_topic("T", 4)
    send(broker, "T", 8)
    broker.advance(MINUTE)
    broker.create_topic("T", 1)
    broker.send("T", b"x")
    broker.advance(MINUTE)
    assert grown(broker) == {"T": 9}


def test_a_round_is_cut_into_pieces(monkeypatch):
    broker = broker_with()
    for number in range(30):
        broker.create_topic(f"T{number:02}", 10)
    broker.send("T29", b"x")
    monkeypatch.setattr(sampler, "QUEUES_PER_TURN", 50)
    looked: list[int] = []
    whole = broker.node.view.plugins["usage"]
    sample, run = whole._sample, whole.run
    monkeypatch.setattr(whole, "_sample", lambda topic: looked.append(sample(topic)) or looked[-1])
    pieces: list[int] = []
    now_ms = broker.node.clock.mono_ms + 10 * MINUTE
    while (due_ms := run(now_ms)) == now_ms:
        pieces.append(sum(looked))
        assert len(pieces) < 1_000
    assert due_ms == now_ms + MINUTE
    steps = [after - before for before, after in zip([0, *pieces], [*pieces, sum(looked)], strict=True)]
    topics_queues_max = max(looked)
    assert all(step < 50 + topics_queues_max for step in steps)
    assert len(steps) > 5
    assert len(looked) == len(broker.node.topics.by_name)


def test_topics_over_the_limit_are_counted():
    broker = broker_with("plugin.usage.topicsMax=2")
    for topic in "abcd":
        broker.send(topic, b"x")
    broker.advance(MINUTE)
    answer = ask(broker)
    assert ([topic.topic for topic in answer.topics], answer.left_out) == (["a", "b"], 2)


def test_the_interval_is_a_setting():
    broker = broker_with("plugin.usage.intervalMillis=500")
    send(broker, "T", 3)
    broker.advance(1_000)
    assert grown(broker) == {"T": 3}


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("plugin.usage.intervalMilis=1000", "did you mean intervalMillis?"),
        ("plugin.usage.intervalMillis=soon", "plugin.usage.intervalMillis = soon"),
        ("plugin.usage.intervalMillis=1", "plugin.usage.intervalMillis = 1"),
        ("plugin.usge.intervalMillis=1000", "did you mean usage?"),
    ],
)
def test_a_setting_that_makes_no_sense_keeps_the_broker_from_starting(setting, words):
    with pytest.raises(ConfigError) as caught:
        broker_with(setting)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_settings_are_looked_at_before_anything_is_opened():
    make = plugins.load(["rmqkit_usage.plugin"]).handlers["usage"]
    with pytest.raises(ConfigError):
        make({"intervalMillis": "soon"})


def test_a_damaged_history_is_said_and_begun_anew(broker):
    send(broker, "T", 3)
    broker.advance(2 * MINUTE)
    broker.stop()
    folder = broker.world.folder("broker")
    for name in (sampler.FILE, f"{sampler.FILE}.bak"):
        damage(folder, name)
    broker.start()
    (line,) = broker.log_lines("usage-begins-anew")
    assert "usage.json" in line["reason"]
    assert grown(broker) == {"T": 0}, "messages before the history are not growth"
    send(broker, "T", 2)
    broker.advance(2 * MINUTE)
    assert grown(broker) == {"T": 2}
    assert b'"T"' in broker.file(sampler.FILE)


def damage(folder, name: str) -> None:
    """Overwrite a file of a stopped broker."""
    from random import Random

    from rmqkit.runtime.ports import Clock
    from rmqkit.sim.disk import SimDisk

    disk = SimDisk(folder, clock=Clock(), random=Random(1), after_us=lambda delay_us, function: function())
    disk.write(name, 0, [b"\0garbage"])


def test_installed_and_not_named_it_does_nothing():
    broker = SimBroker(modules=["rmqkit_usage.plugin"])
    broker.send("T", b"x")
    broker.advance(10 * MINUTE)
    assert broker.ask(GET_USAGE).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert broker.node.view.plugins == {}
    with pytest.raises(FileNotFoundError):
        broker.file(sampler.FILE)


def test_installed_and_not_named_it_loads_nothing():
    code = (
        "import sys; from rmqkit import plugins; plugins.load(['rmqkit_usage.plugin']);"
        "print(sorted(name for name in sys.modules if name.startswith(('rmqkit_usage', 'typer', 'rich'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['rmqkit_usage', 'rmqkit_usage.plugin']"
