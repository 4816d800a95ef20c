"""Waits with a deadline."""

import time
from collections.abc import Callable, Iterable, Sequence

DEADLINE_S = 60.0


def until(
    what: str,
    reached: Callable[[], bool],
    pause_s: float = 0.05,
    deadline_s: float = DEADLINE_S,
    seen: Callable[[], object] | None = None,
) -> None:
    """Poll until `reached` returns True.

    Fail the test after `deadline_s` with `what`, and with the result of `seen`, if it is given.
    """
    end_s = time.monotonic() + deadline_s
    while not reached():
        if time.monotonic() >= end_s:
            shown = f"; seen: {seen()}" if seen is not None else ""
            raise AssertionError(f"not within {deadline_s:.0f} s: {what}{shown}")
        time.sleep(pause_s)


def until_delivered(
    what: str,
    got: list[bytes],
    wanted: Iterable[bytes],
    poll: Callable[[], Sequence[bytes]] = tuple,
    *,
    begin: int = 0,
) -> None:
    """Wait until `got`, from `begin` on, has each of `wanted`. Expect that it has nothing else.

    A second copy is no fault: both brokers promise each delivery *at least* once, and on a slow
    machine queues change hands or an invisible time ends. `poll` returns bodies to add to `got`.
    """
    missing = set(wanted)
    expected = frozenset(missing)

    def is_complete() -> bool:
        got.extend(poll())
        missing.difference_update(got[begin:])
        return not missing

    until(what, is_complete, seen=lambda: f"all but {sorted(missing)} in {got[begin:]}")
    others = set(got[begin:]) - expected
    assert not others, f"{what}: {sorted(others)} were not wanted; seen: {got[begin:]}"
