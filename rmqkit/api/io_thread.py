"""The I/O thread: one daemon thread that drives a client for all producers, consumers and admins of one client id.

Public objects `acquire` it by name servers and instance name and `release` it when they close; the last one stops the
client cleanly and ends the thread. What they want done they `post`: a deque and one wakeup for all that is posted until
the loop gets to it. Whatever the core gives back arrives in this thread; waiting is done on `concurrent.futures` futures,
so Ctrl-C reaches who waits.

When the loop ends for any other reason (a broken invariant), the error is logged once and every object that still uses the
thread is told by its `lost`, so nothing waits for ever.

Fork: a child has none of the threads. After a fork the child's registry is empty, its copies of the sockets are closed,
and every call on an object of the parent raises ClientForked.
"""

import atexit
import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

from rmqkit.api.identity import local_month_bounds, name_servers, new_instance_name, own_ip
from rmqkit.api.log import StdlibLog, logger
from rmqkit.client.client import Client, ClientSettings
from rmqkit.client.flow import Deferred, start
from rmqkit.config import NetworkLimits
from rmqkit.errors import ClientClosed, ClientError, ClientForked, RmqkitError
from rmqkit.runtime.connection import Address
from rmqkit.shell.loop import Loop
from rmqkit.wire.msgid import ip_bytes
from rmqkit.wire.uniqueids import UniqueIds

T = TypeVar("T")

#: A client goes on reading however much it has to write: a broker that stops reading a client which does not take its
#: answers would else wait for a client that waits for the broker. What a producer has to write is bounded by itself.
LIMITS = NetworkLimits(outbox_high_water=2**62, outbox_low_water=2**61, outbox_max=2**62, spin_polls=0)
STOP_GRACE_MS = 4000
#: how long the end of the process waits for clients that nobody closed
EXIT_GRACE_S = 2.0
#: of all threads together
STACKS_SIZE_MAX = 1_000_000


class User:
    """A public object that uses an I/O thread, and is closed at the end of a `with` block."""

    def close(self) -> None:
        """Leave the thread. Safe to call twice."""

    def lost(self, error: RmqkitError) -> None:
        """The thread has ended without being asked to; called in it. Calls that waited for it have failed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class IoThread:
    def __init__(self, namesrv: tuple[Address, ...], instance_name: str) -> None:
        ip = own_ip(namesrv[0])
        self.namesrv = namesrv
        self.client_id = f"{ip}@{instance_name}"
        self.pid = os.getpid()
        self.log = StdlibLog()
        self.loop = Loop(limits=LIMITS, log=StdlibLog(quiet=True))
        # The only files of a client are offsets of broadcasting consumers, which have absolute paths; with the root of
        # the file system as its folder the disk creates nothing before that.
        ports = self.loop.ports(os.path.abspath(os.sep), self.log)
        self.client = Client("client", ports, ClientSettings(client_id=self.client_id, namesrv=namesrv))
        self.client.stacks = _stacks
        self.ids = UniqueIds(ip_bytes(ip), self.pid, ports.entropy.getrandbits(32), local_month_bounds)
        self.users: dict[int, User] = {}
        #: groups that consume through this client; a client id is in a group once
        self.consumer_groups: set[str] = set()
        self.ended: RmqkitError | None = None
        self._waiting: dict[Future[Any], None] = {}
        self._posted: deque[Callable[[], None]] = deque()
        self._drain_asked = False
        self.loop.add(self.client)
        self._thread = threading.Thread(target=self._run, name=f"rmqkit-io-{instance_name}", daemon=True)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def check(self, what: str) -> None:
        """Raises when the calls of `what` can go nowhere: after a fork, or when the thread has ended."""
        if self.pid != os.getpid():
            raise ClientForked(
                f"this {what} was made in process {self.pid}, before the fork; make a new one in process {os.getpid()}"
            )
        if self.ended is not None:
            raise self.ended

    def post(self, function: Callable[[], None]) -> None:
        """Run in the loop's next turn, in the order of the posts."""
        self._posted.append(function)
        if not self._drain_asked:
            self._drain_asked = True
            self.loop.call_soon_threadsafe(self._drain)
        if self.ended is not None:
            self._drain()

    def run(self, what: str, make: Callable[[], Deferred[T]]) -> "Future[T]":
        """A future of the promise that `make` gives; `make` runs in the loop."""
        self.check(what)
        future: Future[T] = Future()

        def begin() -> None:
            if not future.set_running_or_notify_cancel():
                return
            if self.ended is not None:
                future.set_exception(self.ended)
                return
            try:
                promise = make()
            except RmqkitError as error:
                future.set_exception(error)
                return
            self._waiting[future] = None
            promise.when_done(lambda: self._settle(future, promise))

        self.post(begin)
        return future

    def wait(self, what: str, make: Callable[[], Deferred[T]]) -> T:
        """As `run`, and wait for it. Raises what the promise fails with."""
        if self.is_current:
            raise ClientClosed(
                f"{what} cannot wait inside a callback of the I/O thread, which would wait for itself; use the async form"
            )
        return self.run(what, make).result()

    def do(self, what: str, function: Callable[[], None]) -> None:
        """Run a function in the loop, and wait for its end. Raises as `wait`."""

        async def call() -> None:
            function()

        self.wait(what, lambda: start(call()))

    def stop(self, wait_s: float) -> None:
        if self.ended is None:
            self.loop.call_soon_threadsafe(lambda: self.loop.stop(STOP_GRACE_MS))
        if not self.is_current:
            self._thread.join(wait_s)

    def abandon(self) -> None:
        """In a forked child: let go of the parent's sockets without touching what the two processes share."""
        for item in list(self.loop.items.values()):
            sock = getattr(item, "sock", None)
            if sock is not None:
                with suppress(OSError):
                    sock.close()

    def _drain(self) -> None:
        # Cleared first: what is posted from here on asks for another drain.
        self._drain_asked = False
        posted = self._posted
        while posted:
            try:
                function = posted.popleft()
            except IndexError:
                return
            function()

    def _settle(self, future: "Future[Any]", promise: Deferred[Any]) -> None:
        if future not in self._waiting:
            return
        del self._waiting[future]
        try:
            value = promise.result()
        except RmqkitError as error:
            future.set_exception(error)
        else:
            future.set_result(value)

    def _run(self) -> None:
        error: RmqkitError = ClientClosed(f"client {self.client_id} is closed")
        try:
            self.loop.start()
            self.loop.run()
        except BaseException as failure:
            logger.exception("the I/O thread of client %s ended", self.client_id)
            error = ClientClosed(f"the I/O thread of client {self.client_id} ended: {failure!r}; make a new client")
        self.ended = error
        forget(self)
        for user in list(self.users.values()):
            user.lost(error)
        waiting, self._waiting = self._waiting, {}
        for future in waiting:
            future.set_exception(error)
        self._drain()
        self.loop.close()


def _stacks() -> str:
    """What every thread of this program is doing, for an administrator who asks a consumer (`jstack`)."""
    frames = sys._current_frames()
    told = [
        f'"{thread.name}" {"daemon " if thread.daemon else ""}id={thread.ident}\n'
        + "".join(traceback.format_stack(frames[thread.ident]))
        for thread in threading.enumerate()
        if thread.ident in frames
    ]
    return "\n".join(told)[:STACKS_SIZE_MAX]


class _Registry:
    """The I/O threads of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        #: by name servers and instance name, None for the instance that is shared by default
        self.threads: dict[tuple[tuple[Address, ...], str | None], IoThread] = {}
        self.counts: dict[IoThread, int] = {}


_registry = _Registry()


def acquire(
    user: User,
    namesrv: str | Sequence[str] | None,
    instance_name: str | None,
    *,
    consumer_group: str | None = None,
) -> IoThread:
    """The I/O thread for these name servers, started when there is none. `release` it once.

    Without an instance name all share one, except a second consumer of a group: it gets one of its own, since to the
    brokers it is another member.
    """
    addresses = name_servers(namesrv)
    registry = _registry
    with registry.lock:
        key: tuple[tuple[Address, ...], str | None] = (addresses, instance_name)
        thread = registry.threads.get(key)
        if thread is not None and consumer_group in thread.consumer_groups:
            if instance_name is not None:
                raise ClientError(
                    f"group {consumer_group} has a consumer with instance_name {instance_name!r} already; use another name"
                )
            key, thread = (addresses, new_instance_name()), None
        if thread is None or thread.ended is not None:
            thread = IoThread(addresses, key[1] or new_instance_name())
            registry.threads[key] = thread
            registry.counts[thread] = 0
        registry.counts[thread] += 1
        thread.users[id(user)] = user
        if consumer_group is not None:
            thread.consumer_groups.add(consumer_group)
        return thread


def release(user: User, thread: IoThread, consumer_group: str | None = None) -> None:
    """The last release stops the thread and waits for its end."""
    if thread.pid != os.getpid():
        return
    registry = _registry
    with registry.lock:
        if thread.users.pop(id(user), None) is None or thread not in registry.counts:
            return
        if consumer_group is not None:
            thread.consumer_groups.discard(consumer_group)
        registry.counts[thread] -= 1
        if registry.counts[thread]:
            return
        _remove(registry, thread)
    thread.stop(STOP_GRACE_MS / 1000 + 1)


def forget(thread: IoThread) -> None:
    """It has ended; whoever comes next starts another."""
    with _registry.lock:
        _remove(_registry, thread)


def _remove(registry: _Registry, thread: IoThread) -> None:
    registry.counts.pop(thread, None)
    for key in [key for key, each in registry.threads.items() if each is thread]:
        del registry.threads[key]


def _after_fork_in_child() -> None:
    global _registry
    threads, _registry = list(_registry.counts), _Registry()
    for thread in threads:
        thread.abandon()


def _close_at_exit() -> None:
    with _registry.lock:
        threads = list(_registry.counts)
    until = time.monotonic() + EXIT_GRACE_S
    for thread in threads:
        thread.stop(0)
    for thread in threads:
        thread.stop(max(0.0, until - time.monotonic()))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_close_at_exit)
