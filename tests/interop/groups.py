"""A broker group of a master and one slave, one of them Apache's, and access to their data.

Each member has its own folder and can be stopped, killed and started by itself. Its data is read
from that member directly, never by way of a route: the log's bytes from its files, the queues by
pulls over its own port, the tables with the codes that slaves use.
"""

import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rmqkit.wire import fastjson
from rmqkit.wire.record import Record, iter_records
from tests.helpers.ports import free_base
from tests.interop import apache
from tests.interop.exchange import OurNodes
from tests.interop.store_sample import SMALL
from tests.interop.until import until

BROKER = "broker-a"
FILE_SIZE = 64 * 1024
#: ms that a put waits for its copies; short, because some checks wait for this timeout
SLAVE_TIMEOUT_MS = 1500
SMALL_FILES = {
    **SMALL,
    "mappedFileSizeCommitLog": str(FILE_SIZE),
    "mappedFileSizeConsumeQueue": str(20 * 40),
    "flushConsumerOffsetInterval": "500",
    "flushDelayOffsetInterval": "500",
    "waitTimeMillsInSendQueue": "10000",
    "slaveTimeout": str(SLAVE_TIMEOUT_MS),
    "syncFlushTimeout": str(SLAVE_TIMEOUT_MS),
}
SCHEDULE = "SCHEDULE_TOPIC_XXXX"
#: a consumer group that every broker knows
_READER = "TOOLS_CONSUMER"
_PULL, _OFFSET_MAX, _OFFSET_MIN, _RUNTIME_INFO, _CONSUMER_OFFSET, _GET_ROUTE = 11, 30, 31, 28, 14, 105
#: codes by which a slave fetches tables from its master
TOPICS, GROUPS, CONSUMER_OFFSETS, DELAY_OFFSETS = 21, 201, 43, 45


def _kind(whose: str) -> type[apache.ApacheCluster]:
    return OurNodes if whose == "ours" else apache.ApacheCluster


class Queue(NamedTuple):
    """One queue as a broker serves it."""

    offset_min: int
    offset_max: int
    records: dict[int, Record]


class Member:
    """One broker of the group; `whose` is "ours" or "apache"."""

    def __init__(self, whose: str, home: Path, nameserver_port: int, settings: Mapping[str, str], **java: Any) -> None:
        self.whose = whose
        self.port = free_base((-2, 0, 1))
        self.address = f"{java.get('host', apache.HOST)}:{self.port}"
        values = {**settings, "haListenPort": str(self.port + 1)}
        node = {"home": home, "ports": (nameserver_port, self.port), "broker_properties": values, **java}
        #: both makes of this broker; at most one of them runs
        self._nodes = {each: _kind(each)(**node) for each in ("ours", "apache")}
        self._node = self._nodes[whose]
        self.store = self._node.store

    @property
    def pid(self) -> int:
        assert self._node.broker is not None
        return self._node.broker.pid

    def start(self) -> None:
        """Start the broker. Return when it answers and the name server has its address."""
        self._node.start_broker()
        until(f"the name server has {self.address}", lambda: self.address in self._registered())

    def begin(self) -> None:
        """Start the broker without waiting for anything."""
        self._node.start_broker(wait=False)

    def _registered(self) -> list[str]:
        header, body = apache.ask_whole(self._node.namesrv, _GET_ROUTE, {"topic": "TBW102"})
        datas = fastjson.loads(body)["brokerDatas"] if header["code"] == 0 else []
        return [address for data in datas for address in data["brokerAddrs"].values()]

    def set(self, **settings: str) -> None:
        """Change settings; they apply from the next start."""
        for node in self._nodes.values():
            node.set_broker(settings)

    def become(self, whose: str) -> None:
        """Use the other make, with the same folder and ports, from the next start."""
        self.whose = whose
        self._node = self._nodes[whose]

    def stop(self) -> None:
        self._node.stop_broker(clean=True)

    def kill(self) -> None:
        self._node.stop_broker(clean=False)

    def pause(self) -> None:
        """Send SIGSTOP: the process halts, its connections stay open."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Send SIGCONT; has no effect if the process is running."""
        if self._node.broker is not None:
            os.kill(self.pid, signal.SIGCONT)

    def output(self) -> str:
        return self._node.output("broker")

    def expect_runs(self) -> None:
        """Fail with the broker's last lines if its process was started and has ended by itself."""
        process = self._node.broker
        if process is not None and process.poll() is not None:
            raise AssertionError(f"the broker {self.address} ended ({process.returncode}):\n{self.last_lines()}")

    def last_lines(self) -> str:
        return apache.tail(self.output(), 20)

    # --- the member's data ------------------------------------------------------------

    def facts(self) -> dict[str, str]:
        """Return the runtime info (code 28), or {} if the broker does not answer."""
        try:
            header, body = apache.ask_whole(self.address, _RUNTIME_INFO, {})
        except OSError:
            return {}
        if header["code"] != 0:
            return {}
        table: dict[str, str] = fastjson.loads(body)["table"]
        return table

    def log_end(self) -> int:
        return int(self.facts().get("commitLogMaxOffset", -1))

    def log(self) -> tuple[int, bytes]:
        """Return the offset of the log's first byte, and its bytes up to the reported end."""
        return read_log(self.store, self.log_end())

    def table(self, code: int) -> Any:
        header, body = apache.ask_whole(self.address, code, {})
        assert header["code"] == 0, header
        return fastjson.loads(body)

    def group_offset(self, group: str, topic: str, queue_id: int) -> int:
        """Return the group's committed offset in the queue, or -1 if it has none."""
        fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id), "setZeroIfNotFound": "false"}
        answer = apache.ask(self.address, _CONSUMER_OFFSET, fields)
        return int(answer["extFields"]["offset"]) if answer["code"] == 0 else -1

    def offset_max(self, topic: str, queue_id: int) -> int:
        return self._offset(_OFFSET_MAX, topic, queue_id)

    def _offset(self, code: int, topic: str, queue_id: int) -> int:
        answer = apache.ask(self.address, code, {"topic": topic, "queueId": str(queue_id)})
        return int(answer["extFields"]["offset"])

    def queue(self, topic: str, queue_id: int) -> Queue:
        """Return every record of a queue, pulled from this broker."""
        where = {"topic": topic, "queueId": str(queue_id)}
        offset_min, offset_max = (self._offset(code, topic, queue_id) for code in (_OFFSET_MIN, _OFFSET_MAX))
        found: dict[int, Record] = {}
        position = offset_min
        while position < offset_max:
            header, body = apache.ask_whole(self.address, _PULL, {**_pull_at(position), **where})
            assert header["code"] == 0, (self.whose, where, position, header)
            for record in iter_records(body):
                found[record.queue_offset] = record
            assert max(found) >= position, (self.whose, where, position)
            position = max(found) + 1
        return Queue(offset_min, offset_max, found)


def _pull_at(offset: int) -> dict[str, str]:
    return {
        "consumerGroup": _READER,
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": "4",  # subscription included; no suspend, no commit
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }


def read_log(store: Path, end: int) -> tuple[int, bytes]:
    """Return the first byte's offset and the bytes up to `end` of a store's commit log."""
    files = sorted((store / "commitlog").iterdir(), key=lambda path: int(path.name))
    if not files:
        return end, b""
    begin = int(files[0].name)
    assert [int(path.name) for path in files] == list(range(begin, begin + len(files) * FILE_SIZE, FILE_SIZE))
    return begin, b"".join(path.read_bytes() for path in files)[: end - begin]


class Group:
    """A master that needs two copies, its slave, and a running name server.

    The name server is of the master's implementation. The brokers are not started yet. Both get
    `settings`; `java` has more arguments for Apache's nodes (`ApacheCluster`).
    """

    def __init__(
        self, home: Path, *, master: str, slave: str, settings: Mapping[str, str] = SMALL_FILES, **java: Any
    ) -> None:
        self._home = home
        port, _ = apache.free_ports()
        self._nameserver = _kind(master)(home=home / "ns", ports=(port, port), **java)
        self.namesrv = self._nameserver.namesrv
        waits = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2"}
        follows = {"brokerRole": "SLAVE", "brokerId": "1", "slaveReadEnable": "true"}
        self.master = Member(master, home / "master", port, {**settings, **waits}, **java)
        self.slave = Member(slave, home / "slave", port, {**settings, **follows}, **java)
        self._nameserver.start_nameserver()

    def close(self) -> None:
        for member in (self.slave, self.master):
            member.kill()
        self._nameserver.stop()

    def same_end(self) -> bool:
        return self.master.log_end() == self.slave.log_end() > 0

    def expect_same_logs(self) -> None:
        """Expect the slave's log to equal the master's from the slave's first byte on."""
        (master_begin, master), (slave_begin, slave) = self.master.log(), self.slave.log()
        assert slave_begin >= master_begin
        assert len(slave) > 0
        assert slave == master[slave_begin - master_begin :]

    def expect_same_queues(self, queues: Mapping[str, int]) -> None:
        """Expect the slave to serve all records of its log at the master's queue offsets.

        `queues` maps each topic to its number of queues.
        """
        begin, _ = self.slave.log()
        for topic, count in queues.items():
            for queue_id in range(count):
                where = f"{topic} {queue_id}"
                master, slave = self.master.queue(topic, queue_id), self.slave.queue(topic, queue_id)
                assert sorted(master.records) == list(range(master.offset_min, master.offset_max)), where
                wanted = {offset: record for offset, record in master.records.items() if record.phy_offset >= begin}
                assert slave.records == wanted, where
                if wanted:
                    assert (slave.offset_min, slave.offset_max) == (min(wanted), master.offset_max), where

    def keep_store(self, member: Member, name: str) -> None:
        """Copy a stopped member's store folder to `name`."""
        shutil.copytree(member.store, self._home / name)

    def bring_back(self, member: Member, name: str) -> None:
        """Replace a stopped member's store folder with the copy `name`."""
        shutil.rmtree(member.store)
        shutil.copytree(self._home / name, member.store)
