"""Addresses of peers: numeric ones at once, names on a small thread of their own, because a resolver may take seconds.

The answer of the thread is posted back into the driver. A name that cannot be resolved gives an OSError.
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
    """None when `host` is a name. Never blocks."""
    try:
        found = socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM, 0, socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return None
    return [(family, address) for family, _kind, _protocol, _name, address in found]


class Resolver:
    """`post` brings a function into the driver's thread."""

    def __init__(self, post: Callable[[Callable[[], None]], None]) -> None:
        self._post = post
        self._asked: queue.SimpleQueue[tuple[str, int, Resolved] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def resolve(self, host: str, port: int, then: Resolved) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rmqkit-names", daemon=True)
            self._thread.start()
        self._asked.put((host, port, then))

    def close(self) -> None:
        """Let the thread end; it is not waited for, a resolver may hang."""
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
