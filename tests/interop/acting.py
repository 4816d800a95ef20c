"""Two broker groups for tests of acting masters, and a probe that measures a takeover.

`broker-a` is a master and a slave that may act for it. `broker-b` is a master alone. Each node is
Apache's or ours; all of them get the same settings.

The probe is an outside client. It repeatedly asks

- the name server for the route of `broker-a`,
- the broker that the route names as its master for messages and for a queue lock,
- `broker-b` whether delayed messages of `broker-a` arrive there (remote escape).

Each question has its own thread and its own connections, so no question delays another.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rmqkit import Admin, Message, MessageQueue, Producer
from rmqkit.errors import ClientError
from rmqkit.wire import fastjson
from tests.helpers.ports import free_base
from tests.interop import apache
from tests.interop.groups import SMALL_FILES, TOPICS, Member, _kind, _pull_at
from tests.interop.until import until

BROKEN, OTHER = "broker-a", "broker-b"
TOPIC, DELAYED = "acting_plain", "acting_delayed"
QUEUES = 4
#: delay level of the delayed messages (level 2 is 2 s), and the brokers' delay levels
DELAY_LEVEL, DELAY_LEVELS = 2, "1s 2s 5s"
GROUP = "acting_readers"
_GET_ROUTE, _PULL, _SEND, _OFFSET_MAX, _LOCK, _DELETE = 105, 11, 310, 30, 41, 17
_WRITE = 2
#: an Apache slave copies its master's topics about once a minute
COPY_S = 180.0
_POLL_S = 0.02
_ANSWER_S = 0.5

#: timers in ms: Apache's defaults, and those of `cluster up --preset fast-failover`
UPSTREAM_TIMERS = {"scan": 5000, "heartbeat": 1000, "not_active": 10_000, "member_sync": 1000}
FAST_TIMERS = {"scan": 500, "heartbeat": 300, "not_active": 2000, "member_sync": 300}

_ACTING = {
    "enableSlaveActingMaster": "true",
    "enableRemoteEscape": "true",
    "slaveReadEnable": "true",
    "messageDelayLevel": DELAY_LEVELS,
    "haAcceptAnonymous": "true",
}


class ActingCluster:
    """The two groups and their name server.

    `makes` maps each node ("ns", "a0", "a1", "b0") to its implementation: "ours" or "apache".
    All brokers get `settings`. `of_nodes` has more arguments for single nodes.
    """

    def __init__(
        self,
        home: Path,
        makes: Mapping[str, str],
        timers: Mapping[str, int] = FAST_TIMERS,
        settings: Mapping[str, str] | None = None,
        of_nodes: Mapping[str, Mapping[str, Any]] | None = None,
        **java: Any,
    ) -> None:
        more = {node: {**java, **(of_nodes or {}).get(node, {})} for node in ("ns", "a0", "a1", "b0")}
        port = free_base((0,))
        told = {
            "supportActingMaster": "true",
            "notifyMinBrokerIdChanged": "true",
            "scanNotActiveBrokerInterval": str(timers["scan"]),
        }
        self._nameserver = _kind(makes["ns"])(
            home=home / "ns", ports=(port, port), nameserver_properties=told, **more["ns"]
        )
        self.namesrv = self._nameserver.namesrv
        common = {
            **SMALL_FILES,
            "mappedFileSizeCommitLog": str(16 << 20),
            **_ACTING,
            "brokerHeartbeatInterval": str(timers["heartbeat"]),
            "brokerNotActiveTimeoutMillis": str(timers["not_active"]),
            "syncBrokerMemberGroupPeriod": str(timers["member_sync"]),
            **(settings or {}),
        }
        two = {**common, "brokerName": BROKEN, "totalReplicas": "2"}
        one = {**common, "brokerName": OTHER, "brokerRole": "ASYNC_MASTER"}
        #: ASYNC_MASTER: an Apache master that needs a quorum refuses sends until its slave is
        #: connected
        self.master = Member(makes["a0"], home / "a0", port, {**two, "brokerRole": "ASYNC_MASTER"}, **more["a0"])
        self.slave = Member(makes["a1"], home / "a1", port, {**two, "brokerRole": "SLAVE", "brokerId": "1"}, **more["a1"])
        self.other = Member(makes["b0"], home / "b0", port, one, **more["b0"])
        self._nameserver.start_nameserver()

    def start(self) -> None:
        """Start the brokers and create the topics. Return once the slave knows the topics."""
        self.start_brokers()
        self.await_slave()

    def start_brokers(self) -> None:
        """Start all three brokers at once and create both topics on both groups.

        Return once both groups can be written to.
        """
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(Member.start, (self.master, self.slave, self.other)))
        until("both groups can be written to", lambda: self._writable("TBW102") == 2)
        with Admin(self.namesrv) as admin:
            for topic in (TOPIC, DELAYED):
                admin.create_topic(topic, queue_nums=QUEUES)
        for topic in (TOPIC, DELAYED):
            until(f"a route of {topic}", lambda topic=topic: self._writable(topic) == 2)

    def await_slave(self) -> None:
        """Wait until the slave knows the topics. An acting master serves no other topic."""
        for topic in (TOPIC, DELAYED):
            until(f"the slave knows {topic}", lambda topic=topic: self.slave_knows(topic), deadline_s=COPY_S)

    def _writable(self, topic: str) -> int:
        route = self.route(topic)
        return sum(1 for perm, addresses in route.values() if perm & _WRITE and 0 in addresses)

    def slave_knows(self, topic: str) -> bool:
        """Return whether the slave has copied the topic from its master.

        Our slave copies an Apache master's tables every 10 s. An Apache slave needs over a minute.
        """
        return topic in self.slave.table(TOPICS)["topicConfigTable"]

    def route(self, topic: str) -> dict[str, tuple[int, dict[int, str]]]:
        """Return the permission and the addresses by broker id of each broker name.

        Return {} if the topic has no route. Raises OSError.
        """
        header, body = apache.ask_whole(self.namesrv, _GET_ROUTE, {"topic": topic}, timeout_s=_ANSWER_S)
        if header["code"] != 0:
            return {}
        data = fastjson.loads(body)
        perms = {queues["brokerName"]: int(queues["perm"]) for queues in data["queueDatas"]}
        return {
            each["brokerName"]: (
                perms.get(each["brokerName"], 0),
                {int(broker_id): address for broker_id, address in each["brokerAddrs"].items()},
            )
            for each in data["brokerDatas"]
        }

    def close(self) -> None:
        for member in (self.master, self.slave, self.other):
            member.resume()
            member.kill()
        self._nameserver.stop()


class Probe:
    """Watches a takeover from outside; `seen` has the seconds from the fault to each observation.

    Observations that have not happened are missing from `seen`.
    """

    def __init__(self, cluster: ActingCluster) -> None:
        self.cluster = cluster
        self.seen: dict[str, float] = {}
        self._began_s = 0.0
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []

    @contextmanager
    def load(self) -> Iterator[None]:
        """Send to the group whose master will fail, while the context lasts.

        Every 100 ms one plain message and one message delayed by 2 s are sent.
        """
        ended = threading.Event()

        def send() -> None:
            with Producer("acting", namesrv=self.cluster.namesrv, send_msg_timeout_ms=1000) as producer:
                number = 0
                while not ended.wait(0.1):
                    number += 1
                    try:
                        producer.send(Message(TOPIC, f"plain {number}"), queue=MessageQueue(TOPIC, BROKEN, number % QUEUES))
                        queue = MessageQueue(DELAYED, BROKEN, number % QUEUES)
                        producer.send(Message(DELAYED, f"delayed {number}", delay_level=DELAY_LEVEL), queue=queue)
                    except ClientError:
                        pass  # expected while the master is down

        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    # --- the fault and what follows

    def fault(self, break_it: Callable[[], None]) -> None:
        """Break the master with `break_it` and start all watches.

        The number of delayed messages is read before the fault, so that only later ones count.
        """
        before = self._delayed_end()
        self._began_s = time.monotonic()
        break_it()
        self._began_s = time.monotonic()
        self._watch("route", self._route_changed)
        self._watch("read", self._read_served)
        self._watch("lock", self._lock_granted)
        self._watch("delayed", lambda: self._delayed_end() > before)

    def returned(self) -> None:
        """Count seconds from now, the master's return, and watch for its takeover of the group."""
        self._began_s = time.monotonic()
        self._watch("back", self._master_back)

    def wait(self, *names: str, most_s: float) -> bool:
        """Wait up to `most_s` seconds for all these observations. Return whether they were made."""
        end_s = time.monotonic() + most_s
        while time.monotonic() < end_s and not all(name in self.seen for name in names):
            time.sleep(_POLL_S)
        return all(name in self.seen for name in names)

    def close(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _watch(self, name: str, reached: Callable[[], bool]) -> None:
        def look() -> None:
            while not self._stopped.is_set():
                try:
                    if reached():
                        self.seen[name] = time.monotonic() - self._began_s
                        return
                except (OSError, ValueError, KeyError):
                    pass
                time.sleep(_POLL_S)

        thread = threading.Thread(target=look, daemon=True, name=f"probe-{name}")
        self._threads.append(thread)
        thread.start()

    # --- the observations

    def _head(self) -> tuple[int, str]:
        perm, addresses = self.cluster.route(TOPIC).get(BROKEN, (0, {}))
        return perm, addresses.get(0, "")

    def _route_changed(self) -> bool:
        perm, address = self._head()
        return address == self.cluster.slave.address and not perm & _WRITE

    def _read_served(self) -> bool:
        if not self._route_changed():
            return False
        fields = {**_pull_at(0), "topic": TOPIC, "queueId": "0"}
        return bool(apache.ask(self._head()[1], _PULL, fields, timeout_s=_ANSWER_S)["code"] == 0)

    def _lock_granted(self) -> bool:
        if not self._route_changed():
            return False
        queue = {"topic": TOPIC, "brokerName": BROKEN, "queueId": 0}
        body = fastjson.dumps({"consumerGroup": GROUP, "clientId": "probe", "mqSet": [queue], "onlyThisBroker": False})
        header, answer = apache.ask_whole(self._head()[1], _LOCK, {}, body, timeout_s=_ANSWER_S)
        return header["code"] == 0 and bool(fastjson.loads(answer)["lockOKMQSet"])

    def _delayed_end(self) -> int:
        address, total = self.cluster.other.address, 0
        for queue_id in range(QUEUES):
            fields = {"topic": DELAYED, "queueId": str(queue_id)}
            total += int(apache.ask(address, _OFFSET_MAX, fields, timeout_s=_ANSWER_S)["extFields"]["offset"])
        return total

    def _master_back(self) -> bool:
        perm, address = self._head()
        if address != self.cluster.master.address or not perm & _WRITE:
            return False
        return send_plain(address)


def send_plain(address: str) -> bool:
    """Return whether the broker stores a message. Raises OSError."""
    return send_code(address, TOPIC, "") == 0


def send_code(address: str, topic: str, properties: str) -> int:
    """Send one message and return the broker's response code. Raises OSError."""
    fields = {
        "a": GROUP,
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": "0",
        "f": "0",
        "g": str(time.time_ns() // 1_000_000),
        "h": "0",
        "i": properties,
        "j": "0",
        "k": "false",
        "m": "false",
    }
    return int(apache.ask(address, _SEND, fields, b"probe", timeout_s=_ANSWER_S)["code"])
