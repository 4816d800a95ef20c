"""`rmqkit consume --pop`, `rmqkit group pop` and `rmqkit group mode`."""

import pytest

from rmqkit import Message, Producer, PushConsumer
from tests.api.until import until

TOPIC, GROUP = "popped", "workers"


@pytest.fixture
def namesrv(up):
    if not any(each["topic"] == TOPIC for each in up.json("topic", "list")):
        up.run("topic", "create", TOPIC, "--queues", "1")
        up.run("group", "create", GROUP)
    return up.json("cluster", "env")["NAMESRV_ADDR"]


def send(namesrv, *bodies):
    with Producer("sender", namesrv=namesrv) as producer:
        return [producer.send(Message(TOPIC, body)) for body in bodies]


@pytest.mark.long
def test_consume_pops_prints_and_acks(up, namesrv):
    send(namesrv, "one", "two", "three")
    pop = ("consume", TOPIC, "--group", GROUP, "--pop", "--format", "body")
    assert up.run(*pop, "--max", "2").stdout.split() == ["one", "two"]
    assert up.json("group", "pop", GROUP)["total"] == 0, "the third message was popped as well"
    assert up.run(*pop, "--max", "1", "--invisible", "10s").stdout.split() == ["three"]
    assert up.json("group", "pop", GROUP) == {"group": GROUP, "total": 0, "messages": []}
    assert "no popped message" in up.run("group", "pop", GROUP).stderr


@pytest.mark.long
def test_group_pop_lists_messages_in_flight_with_their_clients(up, namesrv):
    (sent,) = send(namesrv, "held")
    held = []
    consumer = PushConsumer(
        GROUP, namesrv=namesrv, mode="pop", consume_from="first", instance_name="holder", pop_invisible_time_ms=20_000
    )
    consumer.subscribe(TOPIC)

    class Holding:
        def submit(self, batch):
            held.append(batch)

        def close(self, wait_s):
            for batch in held:
                consumer.began(batch)
                consumer.finished(batch, True, "")
            return True

    with consumer:
        consumer.start_with(Holding())
        until(lambda: held)
        (row,) = up.json("group", "pop", GROUP, "--topic", TOPIC)["messages"]
        shown = up.run("group", "pop", GROUP).stdout
        assert up.json("group", "pop", GROUP, "--topic", "other")["total"] == 0
        (member,) = up.json("group", "running", GROUP)["members"]
        (work,) = [each for each in member["pops"] if each["topic"] == TOPIC]
        assert (work["queue_id"], work["not_acked"]) == (-1, 1)
        assert "not acked" in up.run("group", "running", GROUP).stdout
    assert (row["topic"], row["queue_id"], row["offset"], row["deliveries"]) == (TOPIC, 0, sent.queue_offset, 1)
    assert row["visible_ms"] - row["popped_ms"] == 20_000
    assert row["client_id"].endswith("holder")
    assert all(text in shown for text in ("visible in", "holder", TOPIC))
    assert up.json("group", "pop", GROUP)["total"] == 0


@pytest.mark.long
def test_the_mode_of_a_group(up, namesrv):
    assert "no mode is set" in up.run("group", "mode", GROUP).stderr
    set_to = up.json("group", "mode", GROUP, TOPIC, "pop", "--share", "2")
    assert (set_to["mode"], set_to["share"], set_to["brokers"]) == ("pop", 2, ["broker-a"])
    assert up.json("group", "mode", GROUP)["modes"] == [{"topic": TOPIC, "mode": "pop"}]
    assert up.run("group", "mode", GROUP, TOPIC, "pull").stdout.strip() == f"group {GROUP} pulls {TOPIC} at broker-a"
    assert up.json("group", "mode", GROUP, TOPIC)["modes"] == [{"topic": TOPIC, "mode": "pull"}]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("consume", TOPIC, "--pop"), "--pop needs --group"),
        (("consume", TOPIC, "--pop", "-g", GROUP, "--from", "3"), "--group"),
        (("consume", TOPIC, "--pop", "-g", GROUP, "--from", "10m"), "--pop takes --from earliest or latest"),
        (("consume", TOPIC, "--pop", "-g", GROUP, "--invisible", "soon"), "--invisible soon: must be a time"),
        (("consume", TOPIC, "--pop", "-g", GROUP, "--invisible", "1s"), "must be from 5000 to 300000 ms"),
        (("consume", TOPIC, "--pop", "-g", GROUP, "--timeout", "3"), "--timeout and --pop exclude each other"),
        (("consume", TOPIC, "-g", GROUP, "--invisible", "9s"), "--invisible needs --pop"),
        (("group", "mode", GROUP, "pop"), "mode pop needs a topic"),
        (("group", "mode", GROUP, TOPIC, "push"), "mode push is not known; choose one of pull, pop"),
        (("group", "mode", GROUP, "--share", "1"), "--share needs the mode pop"),
    ],
)
def test_arguments_that_contradict_each_other(up, namesrv, words, error):
    assert error in up.error(*words, code=2)


def test_names_that_are_unknown(up, namesrv):
    assert "there is no group workerz" in up.error("group", "pop", "workerz", code=1)
    assert "there is no topic poppe" in up.error("group", "mode", GROUP, "poppe", "pop", code=1)
    assert "there is no topic poppe" in up.error("consume", "poppe", "--pop", "-g", GROUP, code=1)
