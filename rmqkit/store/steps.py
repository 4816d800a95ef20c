"""Runs long work in bounded steps: a duty advances a generator, which can wait for completions.

The generator yields False to continue in the next turn, and True to pause until something wakes it.
It creates completions with `awaiting()` and waits for all of them with `yield from steps.wait()`,
which raises the first OSError.
"""

from collections.abc import Callable, Generator

from rmqkit.runtime.duties import Duties
from rmqkit.runtime.ports import Clock, Completion

Work = Generator[bool, None, None]


class Steps:
    """One piece of work, run by the duty `name`."""

    def __init__(self, name: str, duties: Duties, clock: Clock) -> None:
        self.name = name
        self._duties = duties
        self._clock = clock
        self._awaited = 0
        self._error: OSError | None = None

    def begin(self, work: Work, ended: Callable[[OSError | None], None]) -> None:
        """Start the work. `ended` is called with the OSError that ended it, or None."""

        def run(now_ms: int) -> int | None:
            try:
                waits = next(work)
            except StopIteration:
                self._end(ended, None)
            except OSError as error:
                self._end(ended, error)
            else:
                return None if waits else now_ms
            return None

        self._duties.add(self.name, run, self._clock.mono_ms)

    def _end(self, ended: Callable[[OSError | None], None], error: OSError | None) -> None:
        self._duties.remove(self.name)
        ended(error)

    def cancel(self) -> None:
        self._duties.remove(self.name)

    def wake(self) -> None:
        self._duties.wake(self.name, self._clock.mono_ms)

    def awaiting(self) -> Completion:
        """Return a new completion that `wait` waits for."""
        self._awaited += 1
        return self._completed

    def awaiting_call(self) -> Callable[[], None]:
        """Like `awaiting`, for a callback without an error argument."""
        self._awaited += 1
        return lambda: self._completed(None)

    def _completed(self, error: OSError | None) -> None:
        self._awaited -= 1
        self._error = self._error or error
        self.wake()

    def wait(self, unless: Callable[[], object] = lambda: False) -> Work:
        """Wait for all completions, or until `unless()` is true. Raises the first OSError."""
        while self._awaited and not unless():
            yield True
        error, self._error = self._error, None
        if error is not None:
            raise error
