"""Waits with a deadline."""

import time
from collections.abc import Callable

DEADLINE_S = 60.0


def until(what: str, reached: Callable[[], bool], pause_s: float = 0.05) -> None:
    """Poll until `reached` returns True. Fail the test with `what` after 60 s."""
    end_s = time.monotonic() + DEADLINE_S
    while not reached():
        assert time.monotonic() < end_s, f"not within {DEADLINE_S:.0f} s: {what}"
        time.sleep(pause_s)
