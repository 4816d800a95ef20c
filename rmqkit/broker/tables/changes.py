"""Changes: which keys of a table have changed after a point, so that a copy of the table can take just these.

Each change has a number, one more than the last. While somebody follows, the newest number of every key is kept in the
order of the numbers, so that what changed last stands at the end. Nobody following costs a counter.
"""

from collections.abc import Iterable


class Changes:
    __slots__ = ("_numbers", "last")

    def __init__(self) -> None:
        self.last = 0
        self._numbers: dict[str, int] | None = None

    def note(self, key: str) -> None:
        self.last += 1
        numbers = self._numbers
        if numbers is not None:
            numbers.pop(key, None)
            numbers[key] = self.last

    def follow(self, keys: Iterable[str]) -> None:
        """From now on changes are kept; the keys that are there count as changed now."""
        if self._numbers is None:
            self._numbers = {}
            for key in keys:
                self.note(key)

    def since(self, number: int) -> list[tuple[str, int]]:
        """Keys that changed after `number`, in the order of their last change, with its number."""
        found: list[tuple[str, int]] = []
        for key, changed in reversed((self._numbers or {}).items()):
            if changed <= number:
                break
            found.append((key, changed))
        found.reverse()
        return found
