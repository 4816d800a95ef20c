"""Slaves act for a missing master, where Apache runs the name server, the group or a member.

Each story runs a new cluster. Messages flow; then the master of `broker-a` is killed or paused. The
test waits until a client sees the takeover, and lets the master return. In the end Apache's
consumer, which ran all the time, must have received every acknowledged message. No time is judged
here; `make bench-failover` measures.
"""

import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from rmqkit import Message, Producer
from rmqkit.errors import ClientError
from tests.interop import apache
from tests.interop.acting import BROKEN, DELAYED, TOPIC, ActingCluster, Probe
from tests.interop.until import until

OURS, APACHE = "ours", "apache"
#: Which implementation runs each node, and how the master fails. The master of a pair of Apache's
#: is only paused: it cannot come back once a client has pulled from an Apache slave.
STORIES = {
    "our brokers under Apache's name server": ({"ns": APACHE, "a0": OURS, "a1": OURS, "b0": OURS}, "kill"),
    "Apache's brokers under our name server": ({"ns": OURS, "a0": APACHE, "a1": APACHE, "b0": APACHE}, "pause"),
    "our slave acts for Apache's master": ({"ns": OURS, "a0": APACHE, "a1": OURS, "b0": OURS}, "kill"),
    "Apache's slave acts for our master": ({"ns": OURS, "a0": OURS, "a1": APACHE, "b0": OURS}, "kill"),
}
#: stories whose group has brokers of one make
OF_ONE_MAKE = ("our brokers under Apache's name server", "Apache's brokers under our name server")
#: interval in ms at which the Java client polls for new routes; its default is 30 s
ROUTES_MS = 1000
_TAKEOVER_S = _BACK_S = 60.0


class Rider:
    """Apache's push consumer in its own JVM; `given` counts the deliveries of each body."""

    def __init__(self, namesrv: str, home: Path, topic: str) -> None:
        home.mkdir()
        arguments = [namesrv, topic, f"riders_{topic}", str(ROUTES_MS)]
        self._process = apache.start_java("rmqkit.interop.Rider", arguments, home=home, stderr=subprocess.DEVNULL)
        self.given: dict[str, int] = {}
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("got "):
                body = line.rstrip("\n").split(" ", 4)[4]
                self.given[body] = self.given.get(body, 0) + 1

    def close(self) -> None:
        apache.end(self._process, clean=False)
        self._thread.join()


class Sent:
    """The acknowledged bodies of each topic."""

    def __init__(self) -> None:
        self.acknowledged: dict[str, list[str]] = {TOPIC: [], DELAYED: []}

    @contextmanager
    def going_on(self, namesrv: str) -> Iterator[None]:
        ended = threading.Event()

        def send() -> None:
            with Producer("riding", namesrv=namesrv, send_msg_timeout_ms=2000) as producer:
                number = 0
                while not ended.wait(0.05):
                    number += 1
                    for topic, level in ((TOPIC, 0), (DELAYED, 1 + number % 2)):
                        body = f"{topic} {number}"
                        try:
                            result = producer.send(Message(topic, body, delay_level=level))
                        except ClientError:
                            continue  # the outcome is unknown, or the send was refused
                        if result.is_ok:
                            self.acknowledged[topic].append(body)

        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


@pytest.mark.parametrize(
    "story", [pytest.param(story, marks=pytest.mark.interop_full if story in OF_ONE_MAKE else ()) for story in STORIES]
)
def test_a_group_goes_on_without_its_master(story: str, tmp_path: Path) -> None:
    makes, fault = STORIES[story]
    cluster = ActingCluster(tmp_path, makes, heap_mb=384)
    riders: dict[str, Rider] = {}
    try:
        cluster.start()
        for topic in (TOPIC, DELAYED):
            riders[topic] = Rider(cluster.namesrv, tmp_path / f"rider-{topic}", topic)
        _ride(cluster, riders, fault)
    finally:
        for rider in riders.values():
            rider.close()
        cluster.close()


def _ride(cluster: ActingCluster, riders: Mapping[str, Rider], fault: str) -> None:
    sent = Sent()
    with closing(Probe(cluster)) as probe, sent.going_on(cluster.namesrv):
        for topic, rider in riders.items():
            until(f"{topic} flows", lambda rider=rider: len(rider.given) > 20)
        with probe.load():
            time.sleep(3)
            probe.fault(cluster.master.kill if fault == "kill" else cluster.master.pause)
            # "delayed" is not awaited: the load sends delayed messages to both groups, so the count
            # of the other group grows anyway. The end of this test checks those of this group.
            assert probe.wait("route", "read", "lock", most_s=_TAKEOVER_S), probe.seen
            # The consumer continues with the acting master and with the other group.
            count = len(riders[TOPIC].given)
            until("the rider is given more", lambda: len(riders[TOPIC].given) > count)
        if fault == "kill":
            cluster.master.begin()
        else:
            cluster.master.resume()
        probe.returned()
        assert probe.wait("back", most_s=_BACK_S), cluster.route(TOPIC)
        count = sum(body.startswith(TOPIC) for body in riders[TOPIC].given)
        until("the rider is given more", lambda: len(riders[TOPIC].given) > count)
    for topic, rider in riders.items():
        wanted = set(sent.acknowledged[topic])
        assert len(wanted) > 100, "the load did not flow"
        until(f"every acknowledged message of {topic}", lambda wanted=wanted, rider=rider: wanted <= rider.given.keys())
    assert cluster.route(TOPIC)[BROKEN][1][0] == cluster.master.address
