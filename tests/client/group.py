"""Group: one push consumer under test, its listener's batches, and responses as Java's brokers
send.
"""

import json

from rmqkit.client.consumers.offset_store import LocalOffsets, RemoteOffsets
from rmqkit.client.consumers.push_consumer import PushConsumerCore
from rmqkit.client.consumers.push_queue import ListenerBatch, PushConsumerSettings
from rmqkit.client.consumers.subscriptions import ConsumeFrom
from rmqkit.client.flow import start
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.fastjson import MessageQueue
from rmqkit.wire.record import encode_record
from tests.client.peers import CLIENT_ID, Asked, Peers

MEMBERS = RequestCode.GET_CONSUMER_LIST_BY_GROUP
READ = RequestCode.QUERY_CONSUMER_OFFSET
COMMIT = RequestCode.UPDATE_CONSUMER_OFFSET
PULL = RequestCode.PULL_MESSAGE
SEND_BACK = RequestCode.CONSUMER_SEND_MSG_BACK
LOCK = RequestCode.LOCK_BATCH_MQ
UNLOCK = RequestCode.UNLOCK_BATCH_MQ
MAX = RequestCode.GET_MAX_OFFSET


def record(offset: int, body: bytes = b"hello", *, topic: str = "T", queue_id: int = 0, tag: str = "", **more) -> bytes:
    properties = f"TAGS\x01{tag}\x02".encode() if tag else b""
    fields = {
        "flag": 0,
        "phy_offset": 1000 + offset,
        "sys_flag": 0,
        "born_ms": 1,
        "born_host": bytes(8),
        "store_ms": 2,
        "store_host": bytes(8),
        "reconsume_times": 0,
        "prepared_offset": 0,
    }
    extra = more.pop("properties", b"")
    fields |= more
    return encode_record(
        topic=topic, queue_id=queue_id, queue_offset=offset, body=body, properties=properties + extra, **fields
    )


def offsets(next_offset: int, *, low: int = 0, high: int = 10_000, suggest: int = 0) -> dict:
    return {
        "suggestWhichBrokerId": str(suggest),
        "nextBeginOffset": str(next_offset),
        "minOffset": str(low),
        "maxOffset": str(high),
    }


def found(asked: Asked, *records: bytes, next_offset: int, **more) -> None:
    asked.answer(0, offsets(next_offset, **more), b"".join(records), "FOUND")


def members(*ids: str) -> bytes:
    return json.dumps({"consumerIdList": list(ids)}).encode()


class Group:
    def __init__(self, peers: Peers, *, topics: tuple[str, ...] = ("T",), expression: str = "*", **settings) -> None:
        self.peers = peers
        self.batches: list[ListenerBatch] = []
        settings.setdefault("consume_from", ConsumeFrom.FIRST)
        self.settings = PushConsumerSettings(group="CG", **settings)
        self.topics, self.expression = topics, expression
        peers.do(self._make)

    def _make(self) -> None:
        client = self.peers.client
        store = RemoteOffsets(client, "CG")
        if self.settings.broadcasting:
            store = LocalOffsets(client.ports.disk, "/offsets", CLIENT_ID, "CG")
        self.consumer = PushConsumerCore(client, self.settings, store, self.batches.append)
        for topic in self.topics:
            self.consumer.subscribe(topic, self.expression, "TAG")
        self.started = start(self.consumer.start())

    # --- common steps

    def join(self, *others: str, queues: int | None = None) -> None:
        """Answer the queries for members, and answer that the brokers know no offsets."""
        for asked in self.peers.take_all(MEMBERS):
            asked.answer(0, body=members(CLIENT_ID, *others))
        if others:
            self.peers.advance(500)
        for asked in self.peers.take_all(READ):
            asked.answer(22, remark="not found")

    def pulls(self) -> dict[MessageQueue, Asked]:
        """Return the pulls that wait for a response, by queue."""
        table = {}
        for asked in self.peers.asked:
            if asked.code == PULL:
                name = next(n for n, m in self.peers.client.routes.brokers.items() if asked.address in map(str, m.values()))
                table[MessageQueue(asked.ext["topic"], name, int(asked.ext["queueId"]))] = asked
        return table

    def pull(self, queue_id: int = 0, *, topic: str = "T") -> Asked:
        for queue, asked in self.pulls().items():
            if (queue.topic, queue.queue_id) == (topic, queue_id):
                self.peers.asked.remove(asked)
                return asked
        raise AssertionError(f"no pull of {topic}/{queue_id}; there are {list(self.pulls())}")

    def finish(self, ok: bool = True, *, at: int = 0) -> ListenerBatch:
        """Report the outcome of a batch."""
        batch = self.batches.pop(at)
        self.peers.do(lambda: self.consumer.finished(batch, ok))
        return batch

    def bodies(self) -> list[bytes]:
        return [message.body for batch in self.batches for message in batch.messages]

    def close(self) -> None:
        self.peers.do(self.consumer.quiesce)
        self.peers.do(lambda: start(self.consumer.close()))

    def commits(self) -> dict[str, str]:
        """Answer the waiting commits, and return them as queue id to offset."""
        table = {}
        while asked := [each for each in self.peers.asked if each.code == COMMIT]:
            for each in asked:
                self.peers.asked.remove(each)
                table[each.ext["queueId"]] = each.ext["commitOffset"]
                each.answer()
        return table
