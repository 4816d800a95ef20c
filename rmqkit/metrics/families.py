"""Metrics as values and as Prometheus text.

A `Family` is one metric. It has the name that Prometheus sees (Apache's exporter appends the unit,
and so do we), a help text, the names of its own labels, and `samples`, a function of the node that
yields `(label values, value)`. The labels of the node (`cluster`, `node_type`, `node_id` and those
of `metricsLabel`) precede them.

`text_pieces` produces the text in pieces of at most `PIECE` samples, so that a scrape of many
series is spread over several turns. A metric has at most `series_max` series; the remaining ones
are summed up in one series that has OpenTelemetry's overflow label.

The value of a histogram is `(counts, sum)`: `counts` has one number per bound, and one for values
above the last bound.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, islice
from typing import Any, Literal, NamedTuple

from prometheus_client import exposition
from prometheus_client.core import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PIECE = 100
OVERFLOW = {"otel_metric_overflow": "true"}

Histogram = tuple[Sequence[int], float]
Sample = tuple[Sequence[str], float | Histogram]


class Family(NamedTuple):
    """One metric; the module describes the fields."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...]
    samples: Callable[[Any], Iterable[Sample]]
    #: upper bounds of a histogram's buckets
    bounds: tuple[int, ...] = ()
    #: the group of metrics that a setting switches together; "" is always on
    switch: str = ""


class _One:
    """A registry of one metric, the input of prometheus-client's text format."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        return (self._metric,)


def text_pieces(families: Iterable[Family], node: Any, common: Mapping[str, str], series_max: int) -> Iterator[bytes]:
    """Yield the text of the families piece by piece.

    The node's values are read when a piece is taken.
    """
    for family in families:
        left = iter(family.samples(node))
        within = islice(left, series_max)
        is_first = True
        while samples := list(islice(within, PIECE)):
            text = _text(family, [({**common, **_named(family, labels)}, value) for labels, value in samples])
            # Only the first piece of a metric has its HELP and TYPE lines.
            yield text if is_first else text.split(b"\n", 2)[2]
            is_first = False
        rest: list[Sample] = []
        while samples := list(islice(left, PIECE)):
            # Reduce each piece to one sample, then yield: excess series must not delay a turn.
            rest.append(((), _sum(family, samples)))
            yield b""
        if rest:
            text = _text(family, [({**common, **OVERFLOW}, _sum(family, rest))])
            yield text.split(b"\n", 2)[2]


def _named(family: Family, labels: Sequence[str]) -> dict[str, str]:
    return dict(zip(family.labels, labels, strict=True))


def _sum(family: Family, samples: list[Sample]) -> float | Histogram:
    if family.kind != "histogram":
        return sum(value for _, value in samples if not isinstance(value, tuple))
    both = [value for _, value in samples if isinstance(value, tuple)]
    return [sum(column) for column in zip(*(counts for counts, _ in both), strict=True)], sum(each for _, each in both)


def _text(family: Family, samples: list[tuple[dict[str, str], float | Histogram]]) -> bytes:
    name = family.name.removesuffix("_total") if family.kind == "counter" else family.name
    metric = Metric(name, family.help, family.kind)
    for labels, value in samples:
        if isinstance(value, tuple):
            counts, total = value
            for bound, count in zip((*map(str, map(float, family.bounds)), "+Inf"), accumulate(counts), strict=True):
                metric.add_sample(f"{name}_bucket", {**labels, "le": bound}, count)
            metric.add_sample(f"{name}_count", labels, sum(counts))
            metric.add_sample(f"{name}_sum", labels, total)
        else:
            metric.add_sample(family.name, labels, value)
    return exposition.generate_latest(_One(metric))
