"""Delay Ctrl-C, SIGTERM and SIGHUP while a few lines run that must not be interrupted.

Child processes would inherit a signal mask. So the handlers are swapped instead: they note the
signal, which is delivered when the block ends. Only the main thread receives signals, so in any
other thread there is nothing to delay.

A signal that this process ignores stays ignored, and cannot take the place of one that it heeds:
`nohup` ignores SIGHUP, and a shell without job control ignores SIGINT in background jobs.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Delay signals during the block. If several arrive, only the first is delivered at its end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    noted: list[int] = []
    heeded = [each for each in SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]
    before = {each: signal.signal(each, lambda number, _frame: noted.append(number)) for each in heeded}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler if handler is not None else signal.SIG_DFL)
        for number in noted[:1]:
            signal.raise_signal(number)
