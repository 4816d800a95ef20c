"""How long requests take, by request and response code, without a look at a clock: the time of the turn a request came in
and of the turn it was answered in. A request that is answered in its own turn took 0 ms by this measure; what is seen are
waits: for the disk, for replicas, for messages to arrive, and turns that took long.

`Latency` counts; `MeasuredCall` is what remoting makes of a request while it is on (`Remoting.measure`).

Source for buckets and labels: `remoting/.../metrics/RemotingMetricsManager.java`.
"""

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

from rmqkit.runtime.calls import Call, code_name
from rmqkit.runtime.connection import Buffer
from rmqkit.wire.codes import RequestCode, ResponseCode

#: ms
BOUNDS = (1, 3, 5, 7, 10, 100, 1000, 2000, 3000)
LABELS = ("protocol_type", "request_code", "response_code", "is_long_polling", "result")
_ROW = len(BOUNDS) + 2
_RESPONSE_CODES = frozenset(ResponseCode)
#: stands for all response codes that are none of ours
OTHER = -1
_PULLS = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)


class Latency:
    """Counts by (request code, response code, whether a pull was held, one-way); install it with `Remoting.measure`."""

    def __init__(self) -> None:
        #: counts by bound, then the sum of all ms
        self.table: dict[tuple[int, int, bool, bool], list[int]] = {}

    def call(self, remoting: Any, *rest: Any) -> "MeasuredCall":
        """Makes a call that is measured; stands in for `Call`."""
        made = MeasuredCall(remoting, *rest)
        made.began_ms = remoting.clock.mono_ms
        made.latency = self
        return made

    def record(self, call: "MeasuredCall", response_code: int, now_ms: int) -> None:
        took_ms = now_ms - call.began_ms
        key = (call.code, response_code, took_ms > 0 and call.code in _PULLS, bool(call.flag & 2))
        row = self.table.get(key)
        if row is None and response_code not in _RESPONSE_CODES:
            # Clients answer what they like when a request is handed on to them.
            key = (call.code, OTHER, *key[2:])
            row = self.table.get(key)
        if row is None:
            row = self.table[key] = [0] * _ROW
        row[bisect_left(BOUNDS, took_ms) if took_ms else 0] += 1
        row[-1] += took_ms

    def samples(self) -> Iterator[tuple[tuple[str, ...], tuple[list[int], float]]]:
        for (code, response_code, held, oneway), row in list(self.table.items()):
            answer = ResponseCode(response_code).name if response_code in _RESPONSE_CODES else "other"
            labels = ("remoting", code_name(code).lower(), answer.lower(), str(held).lower())
            yield (*labels, "oneway" if oneway else "success"), (row[:-1], row[-1])


class MeasuredCall(Call[Any]):
    __slots__ = ("began_ms", "latency")
    began_ms: int
    latency: Latency

    def finish_frame(self, code: int, frame: Buffer) -> None:
        self.latency.record(self, code, self.remoting.clock.mono_ms)
        Call.finish_frame(self, code, frame)
