"""Hold Ctrl-C and SIGTERM back for a few lines that must run to their end.

A signal mask would be inherited by the processes that are started meanwhile, so the handlers are swapped instead: they
note the signal, and it is delivered when the block ends. Outside the main thread there is nothing to hold.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    noted: list[int] = []
    before = {each: signal.signal(each, lambda number, _frame: noted.append(number)) for each in SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler if handler is not None else signal.SIG_DFL)
        for number in noted[:1]:
            signal.raise_signal(number)
