"""Waiting with a deadline."""

import time

LIMIT_S = 20.0


def until(condition, limit_s=LIMIT_S):
    """Return the result of `condition` once it is true."""
    deadline = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not so within {limit_s} s"
        time.sleep(0.01)
    return found
