"""The I/O thread: one daemon thread that drives a client. All producers, consumers and admins with
the same client id share it.

Public objects `acquire` the thread by name servers and instance name, and `release` it when they
close. The last release stops the client cleanly and ends the thread.

Other threads `post` functions to it: a deque, and one wakeup for everything that is posted until
the loop drains the deque. The core calls back in this thread. Callers wait on `concurrent.futures`
futures, so Ctrl-C interrupts them.

If the loop ends for any other reason (a broken invariant), the thread logs the error once and calls
`lost` of every object that still uses it. So no caller waits forever.

Fork: a child process has none of the threads. After a fork the registry of the child is empty, its
copies of the sockets are closed, and every call on an object of the parent raises ClientForked.
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
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from rmqkit.access.signature import Credentials
from rmqkit.api.identity import local_month_bounds, name_servers, new_instance_name, own_ip
from rmqkit.api.log import StdlibLog, logger
from rmqkit.client.client import Client, ClientSettings
from rmqkit.client.flow import Deferred, start
from rmqkit.client_keys import ClientKeys
from rmqkit.errors import ClientClosed, ClientError, ClientForked, RmqkitError
from rmqkit.runtime.connection import Address
from rmqkit.settings.node_sections import NetworkLimits
from rmqkit.settings.tls_sections import TlsClientSettings, TlsServerSettings
from rmqkit.shell.loop import Loop
from rmqkit.tls.client_choice import Tls, choose_tls
from rmqkit.wire.msgid import ip_bytes
from rmqkit.wire.uniqueids import UniqueIds

if TYPE_CHECKING:
    from rmqkit.tls.node_tls import NodeTls

T = TypeVar("T")

#: No outbox limits: a client keeps reading however much it has to write. Otherwise a client and a
#: broker could deadlock: the broker stops reading until the client takes its responses, and the
#: client stops reading until the broker takes its requests. `Producer` bounds its own requests.
LIMITS = NetworkLimits(outbox_high_water=2**62, outbox_low_water=2**61, outbox_max=2**62, spin_polls=0)
STOP_GRACE_MS = 4000
#: How long the exiting process waits for clients that were not closed.
EXIT_GRACE_S = 2.0
#: Characters, for the stacks of all threads together.
STACKS_SIZE_MAX = 1_000_000


class User:
    """A public object that uses an I/O thread. Leaving its `with` block closes it."""

    def close(self) -> None:
        """Release the I/O thread. Safe to call twice."""

    def lost(self, error: RmqkitError) -> None:
        """Handle the unexpected end of the I/O thread. Called in that thread.

        Calls that wait for the thread have already failed. Programs do not call this.

        Args:
            error: Why the thread ended.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class IoThread:
    """Owns the loop and the client of one client id.

    Other threads may use `check`, `post`, `run`, `wait`, `do` and `stop`. Everything else belongs
    to the I/O thread.
    """

    def __init__(
        self,
        namesrv: tuple[Address, ...],
        instance_name: str,
        tls: TlsClientSettings | None = None,
        keys: ClientKeys | None = None,
    ) -> None:
        """Start the thread. Raises ConfigError if the files of `tls` cannot be used."""
        node_tls = None if tls is None else _node_tls(tls)
        ip = own_ip(namesrv[0])
        self.namesrv = namesrv
        self.client_id = f"{ip}@{instance_name}"
        self.pid = os.getpid()
        self.log = StdlibLog()
        self.loop = Loop(limits=LIMITS, log=StdlibLog(quiet=True))
        # A client only writes the offset files of broadcasting consumers, whose paths are absolute.
        # With the file system's root as its folder, the disk creates no folder of its own.
        ports = self.loop.ports(os.path.abspath(os.sep), self.log)
        sign = Credentials(*keys).sign if keys is not None else None
        self.client = Client("client", ports, ClientSettings(client_id=self.client_id, namesrv=namesrv, sign=sign))
        self.client.stacks = _stacks
        self.ids = UniqueIds(ip_bytes(ip), self.pid, ports.entropy.getrandbits(32), local_month_bounds)
        self.users: dict[int, User] = {}
        #: Groups that consume through this client. A client id can be in a group only once.
        self.consumer_groups: set[str] = set()
        self.ended: RmqkitError | None = None
        self._waiting: dict[Future[Any], None] = {}
        self._posted: deque[Callable[[], None]] = deque()
        self._drain_asked = False
        self.loop.add(self.client, tls=node_tls)
        self._thread = threading.Thread(target=self._run, name=f"rmqkit-io-{instance_name}", daemon=True)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in this I/O thread."""
        return threading.current_thread() is self._thread

    def check(self, what: str) -> None:
        """Raise if `what` cannot be used: after a fork, or after the thread has ended."""
        if self.pid != os.getpid():
            raise ClientForked(
                f"this {what} was created in process {self.pid}, before the fork; create a new one in process {os.getpid()}"
            )
        if self.ended is not None:
            raise self.ended

    def post(self, function: Callable[[], None]) -> None:
        """Run `function` in the next turn of the loop. Posted functions run in order."""
        self._posted.append(function)
        if not self._drain_asked:
            self._drain_asked = True
            self.loop.call_soon_threadsafe(self._drain)
        if self.ended is not None:
            self._drain()

    def run(self, what: str, make: Callable[[], Deferred[T]]) -> "Future[T]":
        """Call `make` in the loop, and return a future of the promise that it returns."""
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
        """Like `run`, but wait for the result. Raises the error of the promise.

        Raises ClientClosed in the I/O thread, which would wait for itself.
        """
        if self.is_current:
            raise ClientClosed(
                f"{what} cannot wait inside a callback of the I/O thread, which would wait for itself; use the async form"
            )
        return self.run(what, make).result()

    def do(self, what: str, function: Callable[[], None]) -> None:
        """Run `function` in the loop and wait until it returns. Raises what `wait` raises."""

        async def call() -> None:
            function()

        self.wait(what, lambda: start(call()))

    def stop(self, wait_s: float) -> None:
        """Stop the loop and wait up to `wait_s` seconds for the end of the thread."""
        if self.ended is None:
            self.loop.call_soon_threadsafe(lambda: self.loop.stop(STOP_GRACE_MS))
        if not self.is_current:
            self._thread.join(wait_s)

    def abandon(self) -> None:
        """In a forked child: close the sockets without touching state that both processes share."""
        for item in list(self.loop.items.values()):
            sock = getattr(item, "sock", None)
            if sock is not None:
                with suppress(OSError):
                    sock.close()

    def _drain(self) -> None:
        # Clear the flag first: a function posted from now on requests another drain.
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
            error = ClientClosed(f"the I/O thread of client {self.client_id} ended: {failure!r}; create a new client")
        self.ended = error
        forget(self)
        for user in list(self.users.values()):
            user.lost(error)
        waiting, self._waiting = self._waiting, {}
        for future in waiting:
            future.set_exception(error)
        self._drain()
        self.loop.close()


def _node_tls(settings: TlsClientSettings) -> "NodeTls":
    """Return the TLS of a client. Raises ConfigError."""
    from rmqkit.tls.node_tls import NodeTls  # loads `ssl`

    return NodeTls(TlsServerSettings(), settings)


def _stacks() -> str:
    """Return the stacks of all threads of this program, for the `jstack` of a running info."""
    frames = sys._current_frames()
    stacks = [
        f'"{thread.name}" {"daemon " if thread.daemon else ""}id={thread.ident}\n'
        + "".join(traceback.format_stack(frames[thread.ident]))
        for thread in threading.enumerate()
        if thread.ident in frames
    ]
    return "\n".join(stacks)[:STACKS_SIZE_MAX]


class ThreadKey(NamedTuple):
    """What the users of one thread share. `instance_name` None is the default instance."""

    namesrv: tuple[Address, ...]
    instance_name: str | None
    tls: TlsClientSettings | None
    keys: ClientKeys | None


class _Registry:
    """The I/O threads of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.threads: dict[ThreadKey, IoThread] = {}
        self.counts: dict[IoThread, int] = {}


_registry = _Registry()


def acquire(
    user: User,
    namesrv: str | Sequence[str] | None,
    instance_name: str | None,
    *,
    tls: Tls = None,
    keys: ClientKeys | None = None,
    consumer_group: str | None = None,
) -> IoThread:
    """Return the I/O thread for these name servers, and start one if there is none.

    `tls` is the argument that `choose_tls` describes. Requests are signed with `keys`.
    Objects with different `tls` or `keys` share no thread.

    The caller must `release` it exactly once. Objects without an instance name share one thread.
    The exception is a second consumer of the same group: it gets its own thread, because the
    brokers must see it as a different member.

    Raises ClientError if the group already has a consumer with this instance name, ConfigError if
    `tls` or its files cannot be used.
    """
    addresses = name_servers(namesrv)
    tls_settings = choose_tls(tls)
    registry = _registry
    with registry.lock:
        key = ThreadKey(addresses, instance_name, tls_settings, keys)
        thread = registry.threads.get(key)
        if thread is not None and consumer_group in thread.consumer_groups:
            if instance_name is not None:
                raise ClientError(
                    f"group {consumer_group} already has a consumer with instance_name {instance_name!r}; use another name"
                )
            key, thread = key._replace(instance_name=new_instance_name()), None
        if thread is None or thread.ended is not None:
            thread = IoThread(addresses, key.instance_name or new_instance_name(), tls_settings, keys)
            registry.threads[key] = thread
            registry.counts[thread] = 0
        registry.counts[thread] += 1
        thread.users[id(user)] = user
        if consumer_group is not None:
            thread.consumer_groups.add(consumer_group)
        return thread


def release(user: User, thread: IoThread, consumer_group: str | None = None) -> None:
    """Release the thread. The last release stops it and waits for its end."""
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
    """Remove a thread that has ended, so that the next `acquire` starts a new one."""
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
