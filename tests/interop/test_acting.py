"""Slaves that act for a master that is gone, with Apache's on either side: name server, group, or one member of it.

Each story is a cluster of its own: messages flow, the master of `broker-a` is killed or stands still, what a client sees of
the takeover is awaited, the master returns, and in the end a consumer of Apache's that rode through all of it has been
given every message that was acknowledged. No time is judged here; `make bench-failover` measures.
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
#: whose each node is, how the master goes, and whether it can come back: Apache's cannot once a client has pulled
#: from a slave of Apache's
STORIES = {
    "our brokers under Apache's name server": ({"ns": APACHE, "a0": OURS, "a1": OURS, "b0": OURS}, "kill"),
    "Apache's brokers under our name server": ({"ns": OURS, "a0": APACHE, "a1": APACHE, "b0": APACHE}, "pause"),
    "our slave acts for Apache's master": ({"ns": OURS, "a0": APACHE, "a1": OURS, "b0": OURS}, "kill"),
    "Apache's slave acts for our master": ({"ns": OURS, "a0": OURS, "a1": APACHE, "b0": OURS}, "kill"),
}
#: of the Java client, ms: it looks for new routes every 30 s unless told otherwise
ROUTES_MS = 1000
_TAKEOVER_S = _BACK_S = 60.0


class Rider:
    """Apache's push consumer in a JVM of its own; `given` has the bodies."""

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
    """Bodies that were acknowledged, by topic."""

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
                            continue  # unknown, or not taken
                        if result.is_ok:
                            self.acknowledged[topic].append(body)

        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


@pytest.mark.parametrize("story", STORIES)
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
            # Of the other group's delayed messages more arrive anyway: those of this one are counted at the end.
            assert probe.wait("route", "read", "lock", most_s=_TAKEOVER_S), probe.seen
            # The rider goes on with what the acting master has, and with the other group.
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
