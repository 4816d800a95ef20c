"""Generates the pages of measurements from the figures that the benches store (`tests/bench`)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.bench import against_apache, failover, figures, lake_write, services, spark_read, sync_master
from tests.bench.takeover import page as takeover


def page() -> str:
    """Return docs/performance.md: the table of figures, then the files of `docs/performance/`."""
    return figures.render(figures.load(against_apache.FIGURES), against_apache.FIGURES.parent)


def replicas_section() -> str:
    return sync_master.section(figures.load(sync_master.KEPT))


def measured() -> dict[str, Callable[[], str]]:
    """Return the pages whose figures exist already, by path."""
    found: dict[str, Callable[[], str]] = {}
    if services.KEPT.exists():
        found["performance/services.md"] = lambda: services.section(figures.load(services.KEPT))
    if lake_write.KEPT.exists():
        found["performance/lake.md"] = lambda: lake_write.section(figures.load(lake_write.KEPT))
    if takeover.KEPT.exists():
        found["comparison.md"] = lambda: takeover.page(takeover.load())
    return found


def spark_section() -> str:
    return spark_read.section(figures.load(spark_read.KEPT))


def failover_section() -> str:
    return failover.section(_timings())


def failover_tables() -> dict[str, str]:
    """Return the generated table of docs/failover.md by its mark."""
    return {"takeovers": failover.summary(_timings())}


def _timings() -> dict[str, Any]:
    figures: dict[str, Any] = json.loads(failover.KEPT.read_text(encoding="utf-8"))
    return figures
