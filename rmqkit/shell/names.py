"""Resolves the addresses of peers.

Numeric addresses are converted at once. Names are looked up on a separate thread, because a
resolver may take seconds. The thread posts its result, or an OSError, back to the driver.
"""

import queue
import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

#: (family, sockaddr) to try in order
Targets = list[tuple[int, Any]]
Resolved = Callable[[Targets, OSError | None], None]


def numeric_targets(host: str, port: int) -> Targets | None:
    """Return the addresses of a numeric host, or None if `host` is a name. Never block."""
    try:
        found = socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM, 0, socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return None
    return [(family, address) for family, _kind, _protocol, _name, address in found]


class Resolver:
    """Looks up host names on one daemon thread. `post` runs a function on the driver's thread."""

    def __init__(self, post: Callable[[Callable[[], None]], None]) -> None:
        self._post = post
        self._asked: queue.SimpleQueue[tuple[str, int, Resolved] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def resolve(self, host: str, port: int, then: Resolved) -> None:
        """Look up a name. Call `then` on the driver's thread with the addresses or an error."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rmqkit-names", daemon=True)
            self._thread.start()
        self._asked.put((host, port, then))

    def close(self) -> None:
        """End the thread after its pending lookups. Do not wait for it, as a resolver may hang."""
        if self._thread is not None:
            self._asked.put(None)

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None:
            host, port, then = asked
            targets: Targets = []
            error: OSError | None = None
            try:
                found = socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM)
                targets = [(family, address) for family, _kind, _protocol, _name, address in found]
            except OSError as failure:
                error = failure
            except UnicodeError:
                error = OSError(f"{host!r} is not a host name")
            self._post(partial(then, targets, error))
