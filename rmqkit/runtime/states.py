"""Named states of a flow that takes several steps: an enum, the table of its legal moves, and the drawing of the table.

A flow subclasses `StateMachine` and hands it its table. `move` refuses what the table lacks: that is a mistake in this
program, so it stops the node. `validate` compares the flow's other fields with its state; the tests call it for every
flow at the end of every test (`tests/helpers/flows.py`).

The drawing stands in the head of the flow's module, where a test compares it with the table.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Generic, TypeVar

S = TypeVar("S", bound=StrEnum)


class IllegalMove(AssertionError):
    """A flow was moved from a state to one that its table does not allow."""


class Moves(Generic[S]):
    """The states of a flow, the first one, and the states that follow each."""

    def __init__(self, following: Mapping[S, Sequence[S]]) -> None:
        """The first row is the state that a flow begins in. Raises ValueError if a state has no row or no way to it."""
        self.first: S = next(iter(following))
        self.following = following
        states = list(type(self.first))
        lost = [state for state in states if state not in following or state not in self._reachable()]
        if lost:
            raise ValueError(f"no row for, or no way to {', '.join(lost)}")

    def _reachable(self) -> dict[S, None]:
        found = {self.first: None}
        left = [self.first]
        while left:
            new = [state for state in self.following.get(left.pop(), ()) if state not in found]
            found.update(dict.fromkeys(new))
            left += new
        return found

    def drawing(self) -> str:
        """A line for each state: the states that follow it."""
        width = max(map(len, self.following))
        lines = [f"{state:{width}}  ->  {', '.join(after) or '(end)'}" for state, after in self.following.items()]
        return "\n".join(lines)


class StateMachine(Generic[S]):
    """A flow in one of the states of its table."""

    def __init__(self, moves: Moves[S]) -> None:
        self._moves = moves
        self.state: S = moves.first

    def move(self, state: S) -> None:
        """Raises IllegalMove. To stay in a state is a move as well, and in the table where it is legal."""
        if state not in self._moves.following[self.state]:
            raise IllegalMove(f"{type(self).__name__}: {self.state} -> {state}")
        self.state = state

    def validate(self) -> None:
        """Raise AssertionError if a field contradicts the state. Holds between turns."""
