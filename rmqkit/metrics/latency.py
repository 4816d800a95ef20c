"""Response times of requests, by request and response code, without extra clock reads.

The time of a request is that of the turn in which it arrived, the time of its response that of the
turn in which it was sent. A request that is answered in its own turn counts as 0 ms. So the metric
shows waits (for the disk, for replicas, for messages to arrive) and turns that took long.

`Latency` counts. While it is installed (`Remoting.measure`), requests become `MeasuredCall`s.

Source for buckets and labels: `remoting/.../metrics/RemotingMetricsManager.java`.
"""

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

from rmqkit.runtime.calls import Call, code_name
from rmqkit.wire.codes import RequestCode, ResponseCode

#: upper bounds of the buckets, in ms
BOUNDS = (1, 3, 5, 7, 10, 100, 1000, 2000, 3000)
LABELS = ("protocol_type", "request_code", "response_code", "is_long_polling", "result")
_ROW = len(BOUNDS) + 2
_RESPONSE_CODES = frozenset(ResponseCode)
#: stands for all response codes outside `ResponseCode`
OTHER = -1
_PULLS = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)


class Latency:
    """Counts by (request code, response code, whether a pull was held, one-way).

    Install it with `Remoting.measure`.
    """

    def __init__(self) -> None:
        #: per row: a count per bucket, then the sum of all times in ms
        self.table: dict[tuple[int, int, bool, bool], list[int]] = {}

    def call(self, remoting: Any, *rest: Any) -> "MeasuredCall":
        """Create a measured call; takes the place of `Call`."""
        made = MeasuredCall(remoting, *rest)
        made.began_ms = remoting.clock.mono_ms
        made.latency = self
        return made

    def record(self, call: "MeasuredCall", response_code: int, now_ms: int) -> None:
        """Count the response to a call."""
        took_ms = now_ms - call.began_ms
        key = (call.code, response_code, took_ms > 0 and call.code in _PULLS, bool(call.flag & 2))
        row = self.table.get(key)
        if row is None and response_code not in _RESPONSE_CODES:
            # A client that answers a forwarded request may send any code.
            key = (call.code, OTHER, *key[2:])
            row = self.table.get(key)
        if row is None:
            row = self.table[key] = [0] * _ROW
        row[bisect_left(BOUNDS, took_ms) if took_ms else 0] += 1
        row[-1] += took_ms

    def samples(self) -> Iterator[tuple[tuple[str, ...], tuple[list[int], float]]]:
        """Yield the histogram of each row with its label values."""
        for (code, response_code, held, oneway), row in list(self.table.items()):
            answer = ResponseCode(response_code).name if response_code in _RESPONSE_CODES else "other"
            labels = ("remoting", code_name(code).lower(), answer.lower(), str(held).lower())
            yield (*labels, "oneway" if oneway else "success"), (row[:-1], row[-1])


class MeasuredCall(Call[Any]):
    """A call that records its response time."""

    __slots__ = ("began_ms", "latency")
    began_ms: int
    latency: Latency

    def finish_framed(self, code: int) -> bool:
        self.latency.record(self, code, self.remoting.clock.mono_ms)
        return Call.finish_framed(self, code)
