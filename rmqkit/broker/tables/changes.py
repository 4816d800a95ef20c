"""Which keys of a table have changed since a point, so that a copy of the table takes only those.

Each change has a number, one more than the last. Once a follower exists, the newest number of every
key is recorded in the order of the numbers, so that the newest changes are at the end. Without a
follower, a change costs one increment.
"""

from collections.abc import Iterable


class Changes:
    """The changes of one table. `last` is the number of the last change, 0 before the first."""

    __slots__ = ("_numbers", "last")

    def __init__(self) -> None:
        self.last = 0
        self._numbers: dict[str, int] | None = None

    def note(self, key: str) -> None:
        """Count a change of `key`."""
        self.last += 1
        numbers = self._numbers
        if numbers is not None:
            numbers.pop(key, None)
            numbers[key] = self.last

    def follow(self, keys: Iterable[str]) -> None:
        """Begin to record changes; all present `keys` count as changed now."""
        if self._numbers is None:
            self._numbers = {}
            for key in keys:
                self.note(key)

    def since(self, number: int) -> list[tuple[str, int]]:
        """Return (key, number of its last change) of keys changed after `number`, oldest first."""
        found: list[tuple[str, int]] = []
        for key, changed in reversed((self._numbers or {}).items()):
            if changed <= number:
                break
            found.append((key, changed))
        found.reverse()
        return found
