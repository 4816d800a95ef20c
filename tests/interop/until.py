"""Waits with a deadline."""

import time
from collections.abc import Callable

DEADLINE_S = 60.0


def until(what: str, reached: Callable[[], bool], pause_s: float = 0.05, deadline_s: float = DEADLINE_S) -> None:
    """Poll until `reached` returns True. Fail the test with `what` after `deadline_s`."""
    end_s = time.monotonic() + deadline_s
    while not reached():
        assert time.monotonic() < end_s, f"not within {deadline_s:.0f} s: {what}"
        time.sleep(pause_s)
