"""A scripted name server and scripted brokers.

A broker's queue is a dict of records; a test can replace any response by an error.
"""

import contextlib
import socket
import threading
from collections.abc import Iterator, Mapping

from rmqkit.runtime.connection import Address
from rmqkit.spark import link
from rmqkit.wire.bodies import TopicRoute
from rmqkit.wire.bodies.route import BrokerData, QueueData
from rmqkit.wire.codes import PermName, RequestCode, ResponseCode
from rmqkit.wire.hosts import pack_host
from rmqkit.wire.record import encode_record
from rmqkit.wire.remoting.frames import FrameBuffer, frame
from rmqkit.wire.remoting.headers import decode_head, encode_response

TOPIC, BROKER = "T", "broker-a"
HOST = pack_host("10.0.0.1", 10_911)


def close_idle_links() -> None:
    while link._idle:
        link._idle.popitem()[1].close()


def record(offset: int, body: bytes = b"", properties: bytes = b"", **fields) -> bytes:
    usual = {
        "topic": TOPIC,
        "queue_id": 0,
        "flag": 0,
        "queue_offset": offset,
        "phy_offset": offset * 100,
        "sys_flag": 0,
        "born_ms": 1000 + offset,
        "born_host": HOST,
        "store_ms": 2000 + offset,
        "store_host": HOST,
        "reconsume_times": 0,
        "prepared_offset": 0,
    }
    return encode_record(body=body or b"%d" % offset, properties=properties, **(usual | fields))


class Node:
    """A server on its own port.

    `answer` returns code, fields and body, None to stay silent, or "close" to close the connection.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[int, dict[str, str]]] = []
        self.connections = 0
        self._sockets: list[socket.socket] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = Address(*self._server.getsockname())
        self._accepting = threading.Thread(target=self._accept)
        self._threads: list[threading.Thread] = []
        self._accepting.start()

    def answer(self, code: int, fields: dict[str, str]) -> tuple[int, dict[str, str], bytes] | str | None:
        raise NotImplementedError

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            self.connections += 1
            self._sockets.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        cut = FrameBuffer()
        with contextlib.suppress(OSError), connection:
            while data := connection.recv(65_536):
                for each in cut.feed(data):
                    head = decode_head(each)
                    fields = head.ext_fields or {}
                    self.asked.append((head.code, fields))
                    given = self.answer(head.code, fields)
                    if given == "close":
                        return
                    if given is not None:
                        code, ext, body = given
                        header = encode_response(code, head.opaque, ext, "as the test says", codec=each.codec)
                        connection.sendall(frame(header, body, each.codec))

    def close(self) -> None:
        for each in (self._server, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in (self._accepting, *self._threads):
            thread.join()


class NameServer(Node):
    def __init__(self) -> None:
        super().__init__()
        #: broker id -> address
        self.members: dict[int, Address] = {}
        self.is_writable = True
        self.answers_left = -1

    def answer(self, code, fields):
        assert code == RequestCode.GET_ROUTEINFO_BY_TOPIC
        if not self.members:
            return ResponseCode.TOPIC_NOT_EXIST, {}, b""
        perm = PermName.PERM_READ | (PermName.PERM_WRITE if self.is_writable else 0)
        data = BrokerData(
            broker_name=BROKER,
            cluster="c",
            broker_addrs={key: str(address) for key, address in self.members.items()},
            enable_acting_master=True,
        )
        queues = QueueData(broker_name=BROKER, perm=perm, read_queue_nums=1, write_queue_nums=1)
        return 0, {}, TopicRoute(broker_datas=[data], queue_datas=[queues]).encode()


class Broker(Node):
    """A broker of one queue.

    `records` maps offsets to records, `first` and `end` are the queue's range. A response has at
    most `count_max` records and about `bytes_max` bytes.
    """

    def __init__(self, records: Mapping[int, bytes], *, is_slave: bool = False, count_max: int = 32) -> None:
        self.records = dict(records)
        self.first = min(records, default=0)
        self.end = max(records, default=-1) + 1
        self.is_slave = is_slave
        self.count_max = count_max
        self.bytes_max = 256 * 1024
        #: by queue offset: the response to send instead of the queue's records
        self.instead: dict[int, object] = {}
        #: called with the offset of each pull
        self.on_pull = lambda offset: None
        super().__init__()

    def answer(self, code, fields):
        assert code == RequestCode.PULL_MESSAGE
        offset, count = int(fields["queueOffset"]), int(fields["maxMsgNums"])
        self.on_pull(offset)
        if offset in self.instead:
            return self.instead[offset]
        if not self.first <= offset < self.end:
            return self._miss(offset)
        body = b""
        at = offset
        while at < self.end and at - offset < min(count, self.count_max):
            made = self.records.get(at, b"")
            if body and len(body) + len(made) > self.bytes_max:
                break
            body += made
            at += 1
        found = ResponseCode.SUCCESS if body else ResponseCode.PULL_RETRY_IMMEDIATELY
        return int(found), self.offsets(at), body

    def _miss(self, offset):
        if self.is_slave:
            return int(ResponseCode.PULL_RETRY_IMMEDIATELY), self.offsets(offset), b""
        if offset == self.end:
            return int(ResponseCode.PULL_NOT_FOUND), self.offsets(offset), b""
        return int(ResponseCode.PULL_OFFSET_MOVED), self.offsets(self.first if offset < self.first else self.end), b""

    def offsets(self, following: int) -> dict[str, str]:
        return {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(following),
            "minOffset": str(self.first),
            "maxOffset": str(self.end),
        }


class Group:
    """A name server, a master and, if a test adds them, slaves."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.nameserver = self.with_node(NameServer())

    def with_node(self, node):
        self.nodes.append(node)
        return node

    def broker(self, records: Mapping[int, bytes], broker_id: int = 0, **more) -> Broker:
        made = self.with_node(Broker(records, is_slave=broker_id > 0, **more))
        self.nameserver.members[broker_id] = made.address
        return made

    @property
    def namesrv(self) -> tuple[str, ...]:
        return (str(self.nameserver.address),)

    def close(self) -> None:
        for node in self.nodes:
            node.close()


@contextlib.contextmanager
def group() -> Iterator[Group]:
    made = Group()
    try:
        yield made
    finally:
        made.close()
