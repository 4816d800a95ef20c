"""A toy special duty that counts. Each number is a message, put by exactly one group member."""

import json

import msgspec

from rmqkit.broker.special.contract import SpecialRow
from rmqkit.errors import RemoteProtocolError
from rmqkit.runtime.atomic_file import AtomicFile
from rmqkit.store.contract import Put, PutStatus

TOPIC = "Counted"
EVERY_MS = 200
DUTY = "counter"


class Count:
    """The progress: how many numbers were put."""

    def __init__(self, value):
        self.value = value

    def encode(self):
        return json.dumps({"count": self.value}).encode()

    @staticmethod
    def decode(data):
        try:
            return Count(msgspec.json.decode(data, type=dict[str, int])["count"])
        except (msgspec.MsgspecError, KeyError) as error:
            raise RemoteProtocolError(str(error)) from None


class Counter:
    save_interval_ms = 1_000

    def __init__(self, parts):
        self.context = parts.context
        self.group = self.context.config.identity.broker_name
        self.count = 0
        self.is_moving = False
        self._file = AtomicFile(self.context.disk, f"{parts.folder}/counter.json")
        self._to = None

    def load(self, *, is_copy):
        found = self._file.load(Count.decode)
        self.count = 0 if found is None else found.value

    def save(self, then=None):
        self._file.save(lambda: self.snapshot().encode(), then)

    def start(self, destination):
        self._to = destination
        self.context.duties.add(DUTY, self._run, self.context.clock.mono_ms)

    def stop(self):
        self.context.duties.remove(DUTY)

    @property
    def is_on(self):
        return DUTY in self.context.duties

    def snapshot(self):
        return Count(self.count)

    def merge(self, snapshot):
        self.count = max(self.count, snapshot.value)

    def truncate(self, limit):
        self.count = min(self.count, limit.value if limit is not None else self.count)

    def due_count(self):
        return int(self.is_on)

    def facts(self):
        return {"counted": str(self.count)}

    def _run(self, now_ms):
        if not self.is_moving:
            self.is_moving = True
            number = self.count
            body = f"{self.group}:{number}".encode()
            put = Put(TOPIC, 0, 0, 0, 1, bytes(8), bytes(8), 0, 0, body, b"", 0)
            self._to.put(put, f"COUNT:{number}", lambda status: self._ended(number, status))
        return now_ms + EVERY_MS

    def _ended(self, number, status):
        self.is_moving = False
        if status is PutStatus.PUT_OK:
            self.count = max(self.count, number + 1)
            self.save()


ROW = SpecialRow("counter", "its count", 46_000, "", Count.decode, Counter)
