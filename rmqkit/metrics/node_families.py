"""Metrics of nodes that have no messages: a name server and a controller."""

from collections.abc import Iterator
from typing import Any

from rmqkit.metrics.families import Family, Sample
from rmqkit.runtime.calls import code_name


def requests(node: Any) -> Iterator[Sample]:
    """Yield the number of requests by code, which every node counts."""
    for code, count in list(node.remoting.counts.items()):
        yield (code_name(code).lower(),), count


def _uptime(node: Any) -> Iterator[Sample]:
    yield (), max(0, node.clock.mono_ms - node.started_ms) // 1000


NODE_FAMILIES: tuple[Family, ...] = (
    Family("rmqkit_requests_total", "counter", "Requests received", ("request_code",), requests),
    Family("rmqkit_uptime_seconds", "gauge", "Seconds since the node started", (), _uptime),
)
