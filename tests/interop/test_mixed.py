"""Java's client and ours in one cluster answer each other's requests and read each other's traces.

The tests run against our cluster and against Apache's name server and broker.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqkit import Admin, Message, MessageExt, Producer, PushConsumer
from rmqkit.wire.trace import TRACE_TOPIC, TraceType, decode
from tests.interop import apache, clusters
from tests.interop.lines import CheckRun
from tests.interop.until import until

NAME = "mixed"
#: one of the two clusters is the one that the tests of our client share
pytestmark = pytest.mark.xdist_group("apache_cluster")


@pytest.fixture(params=["rmqkit", "apache"])
def namesrv(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "apache":
        yield request.getfixturevalue("apache_cluster").namesrv
    else:
        with clusters.our_cluster(tmp_path / "home") as made:
            yield made.namesrv


@pytest.fixture
def java(namesrv: str, tmp_path: Path) -> Iterator[CheckRun]:
    with Admin(namesrv) as admin:
        for side in ("java", "ours"):
            admin.create_topic(f"{NAME}_{side}", queue_nums=2)
    home = tmp_path / "driver"
    home.mkdir()
    running = CheckRun(
        home,
        lambda errors: apache.start_java(
            "rmqkit.interop.Driver",
            [namesrv, "mixed"],
            home=home,
            stderr=errors,
            properties={"interop.mixed": NAME},
        ),
    )
    try:
        yield running
    finally:
        running.close()


def test_each_answers_the_other_and_reads_its_traces(namesrv: str, java: CheckRun) -> None:
    consumer = PushConsumer(f"{NAME}_answerers", namesrv=namesrv, consume_from="first", trace=True)
    consumer.subscribe(f"{NAME}_ours")
    with (
        Producer(f"{NAME}_repliers", namesrv=namesrv, send_msg_timeout_ms=10_000) as replier,
        Producer(f"{NAME}_askers", namesrv=namesrv, send_msg_timeout_ms=10_000, trace=True) as asker,
        Admin(namesrv) as admin,
    ):

        def answer(message: MessageExt) -> None:
            if message.wants_reply:
                replier.send(message.reply(b"ours: " + message.body))

        consumer.start(answer)
        with consumer:
            for number in range(3):
                question = Message(f"{NAME}_java", f"we ask {number}", keys="asked-by-ours", tags="TagOurs")
                reply = asker.request(question, timeout_ms=60_000)
                assert reply.body == b"java: we ask %d" % number
            result = java.result("mixed")
        assert result["ok"], result.get("trace", result)

        def of_java() -> set[TraceType]:
            found = admin.query_messages(TRACE_TOPIC, "asked-by-java") + admin.query_messages(TRACE_TOPIC, "asked-by-ours")
            records = [record for message in found for record in decode(message.body)]
            return {record.type for record in records if not record.group.startswith(NAME)}

        wanted = {TraceType.PUB, TraceType.SUB_BEFORE, TraceType.SUB_AFTER}
        until("traces of Java's producer and consumer", lambda: of_java() >= wanted)
