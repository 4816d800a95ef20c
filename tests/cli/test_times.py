"""Times on the command line."""

from datetime import UTC, datetime

import pytest

from rmqkit.cli.times import parse_time, show_time

NOW_MS = 1_767_225_600_000


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("1767225600123", 1_767_225_600_123),
        ("10m", NOW_MS - 600_000),
        ("-10m", NOW_MS - 600_000),
        ("1.5h", NOW_MS - 5_400_000),
        ("250ms", NOW_MS - 250),
        ("2d", NOW_MS - 172_800_000),
        ("2026-01-01T00:00:00Z", 1_767_225_600_000),
        ("2026-01-01T02:00+02:00", 1_767_225_600_000),
        ("2026-01-01 00:00:00.5Z", 1_767_225_600_500),
        ("2026-01-01", round(datetime(2026, 1, 1).timestamp() * 1000)),
    ],
)
def test_a_time_as_people_write_it(text, time_ms):
    assert parse_time(text, NOW_MS) == time_ms


@pytest.mark.parametrize("text", ["", "x", "10", "10 m", "2026", "2026-13-01", "2026-01-01T25:00", "m", "1767225600"])
def test_texts_that_are_no_time(text):
    assert parse_time(text, NOW_MS) is None


def test_shown_in_local_time():
    shown = show_time(NOW_MS + 7)
    assert datetime.fromisoformat(shown).astimezone(UTC) == datetime(2026, 1, 1, 0, 0, 0, 7000, tzinfo=UTC)
    assert show_time(0) == show_time(-1) == "-"
