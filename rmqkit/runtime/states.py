"""State machines for flows of several steps: an enum and the table of its legal moves.

A flow subclasses `StateMachine` and passes in its table. `move` raises for a move that is not in
the table: that is a programming error, so it stops the node. `validate` compares the other fields
of the flow with its state; the tests call it for every flow at the end of every test
(`tests/helpers/flows.py`).

The module head of each flow contains a drawing of its table; a test compares it with the table.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Generic, TypeVar

S = TypeVar("S", bound=StrEnum)


class IllegalMove(AssertionError):
    """A move that the flow's table does not allow."""


class Moves(Generic[S]):
    """The table of a flow: its states, the first one, and the successors of each."""

    def __init__(self, following: Mapping[S, Sequence[S]]) -> None:
        """Take the first row's state as the initial state.

        Raises ValueError if a state has no row or is unreachable.
        """
        self.first: S = next(iter(following))
        self.following = following
        states = list(type(self.first))
        lost = [state for state in states if state not in following or state not in self._reachable()]
        if lost:
            raise ValueError(f"no row, or unreachable: {', '.join(lost)}")

    def _reachable(self) -> dict[S, None]:
        found = {self.first: None}
        left = [self.first]
        while left:
            new = [state for state in self.following.get(left.pop(), ()) if state not in found]
            found.update(dict.fromkeys(new))
            left += new
        return found

    def drawing(self) -> str:
        """Return one line per state, with its successors."""
        width = max(map(len, self.following))
        lines = [f"{state:{width}}  ->  {', '.join(after) or '(end)'}" for state, after in self.following.items()]
        return "\n".join(lines)


class StateMachine(Generic[S]):
    """A flow that is in one of the states of its table."""

    def __init__(self, moves: Moves[S]) -> None:
        self._moves = moves
        self.state: S = moves.first

    def move(self, state: S) -> None:
        """Enter a state. Raises IllegalMove.

        Re-entering the current state is a move as well; the table must list it.
        """
        if state not in self._moves.following[self.state]:
            raise IllegalMove(f"{type(self).__name__}: {self.state} -> {state}")
        self.state = state

    def validate(self) -> None:
        """Raise AssertionError if a field contradicts the state. Must hold between turns."""
