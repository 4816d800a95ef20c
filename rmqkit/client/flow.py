"""Flows: client work of several steps, written as coroutines and driven by the node's callbacks.

An `async def` of this package may only await a `Deferred`, also called a promise. A promise is
resolved once: by the response to a call, by a timer or by another flow. The coroutine continues
inside the call that resolves it. So a flow adds no thread, queue or turn of its own, and a run
stays repeatable. `start` runs a coroutine up to its first unresolved promise and returns a promise
of its result.

    async def begin(queue):
        offset = await self.offsets.read(queue)      # a call to a broker
        await self.client.timers.sleep(500)          # a timer
        ...
    start(begin(queue))

If no code awaits a flow, its errors must not vanish: pass `failed` to `start`, which gets every
`RmqkitError` that the flow ends with. Any other exception is a broken invariant and propagates to
the driver.
"""

from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar, cast

from rmqkit.errors import RmqkitError

T = TypeVar("T")


class Deferred(Generic[T]):
    """A value that arrives later. It may be awaited several times, but resolved only once."""

    __slots__ = ("_callbacks", "_error", "_value", "done")

    def __init__(self) -> None:
        self.done = False
        self._value: T | None = None
        self._error: RmqkitError | None = None
        self._callbacks: list[Callable[[], None]] = []

    def resolve(self, value: T) -> None:
        """Set the value and run the callbacks."""
        self._end(value, None)

    def fail(self, error: RmqkitError) -> None:
        """Set the error and run the callbacks."""
        self._end(None, error)

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the promise ends, or now if it has."""
        if self.done:
            callback()
        else:
            self._callbacks.append(callback)

    def result(self) -> T:
        """Return the value or raise the error. Only valid when `done`."""
        assert self.done
        if self._error is not None:
            raise self._error
        return cast(T, self._value)

    def __await__(self) -> Generator["Deferred[Any]", None, T]:
        if not self.done:
            yield self
        return self.result()

    def _end(self, value: T | None, error: RmqkitError | None) -> None:
        assert not self.done, "a promise is resolved once"
        self.done = True
        self._value = value
        self._error = error
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()


def start(flow: Coroutine[Any, Any, T], failed: Callable[[RmqkitError], None] | None = None) -> Deferred[T]:
    """Run the flow to its first wait and return a promise of its result.

    If the flow ends with an RmqkitError, `failed` is called with it as well.
    """
    end: Deferred[T] = Deferred()
    if failed is not None:
        end.when_done(lambda: _report(end, failed))
    _step(flow, end)
    return end


def _report(end: Deferred[Any], failed: Callable[[RmqkitError], None]) -> None:
    try:
        end.result()
    except RmqkitError as error:
        failed(error)


def _step(flow: Coroutine[Any, Any, T], end: Deferred[T]) -> None:
    # A resolved promise never yields, so each yield is a real wait.
    try:
        waited: Deferred[Any] = flow.send(None)
    except StopIteration as stop:
        end.resolve(stop.value)
    except RmqkitError as error:
        end.fail(error)
    else:
        waited.when_done(lambda: _step(flow, end))


async def gather(promises: list[Deferred[T]]) -> list[T]:
    """Return the values of all promises, in order. Raises the first error after all have ended."""
    for promise in promises:
        if not promise.done:
            await _ended(promise)
    return [promise.result() for promise in promises]


async def _ended(promise: Deferred[Any]) -> None:
    end: Deferred[None] = Deferred()
    promise.when_done(lambda: end.resolve(None))
    await end
