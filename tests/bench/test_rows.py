"""Tests in which regime a session measures its rows, and after how much load."""

import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.bench import rows
from tests.bench.rows import ASYNC_FLUSH, FIRST, WARM, Row, Session

Event = tuple[str, str | int]


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """Return the loads and rows of a session as they run; no load runs for real."""
    found: list[Event] = []
    monkeypatch.setattr(rows, "put_under_load", lambda session, seconds: found.append(("load", round(seconds))))
    return found


def session_since(seconds: float) -> Session:
    running = cast(Any, SimpleNamespace(name="rmqkit"))
    return Session(running, cast(Any, None), 1.0, 4.0, began_s=time.monotonic() - seconds)


def row(events: list[Event], name: str, *, is_restart: bool = False, regime: str = "") -> Row:
    def run(session: Session) -> Mapping[str, Any]:
        events.append((name, session.regime))
        if is_restart:
            session.began_s = time.monotonic()
        return {"perSecond": 1.0}

    return Row(name, "msg/s", 1.0, ASYNC_FLUSH, run, regime=regime)


def test_a_row_is_measured_in_the_first_minute_and_again_once_the_broker_is_warm(events: list[Event]) -> None:
    table = {"both": row(events, "both"), "once": row(events, "once", regime=FIRST)}
    found = rows.measure_rows(session_since(20), table, list(table), warm_after_s=60)
    assert events == [("load", 3), ("both", FIRST), ("once", FIRST), ("load", 40), ("both", WARM)]
    assert set(found) == {("both", FIRST), ("once", FIRST), ("both", WARM)}


def test_a_process_that_a_row_starts_is_put_under_load_for_as_long_as_the_others(events: list[Event]) -> None:
    table = {"restart": row(events, "restart", is_restart=True, regime=FIRST)}
    rows.measure_rows(session_since(55), table, list(table), warm_after_s=60)
    assert events[-1] == ("load", 60)


def test_a_warm_pass_follows_some_load_even_if_the_rows_before_took_long(events: list[Event]) -> None:
    rows.measure_rows(session_since(300), {"both": row(events, "both")}, ["both"], warm_after_s=60)
    assert events[-2:] == [("load", 10), ("both", WARM)]
