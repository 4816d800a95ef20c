from enum import StrEnum

import pytest

from rmqkit.runtime.states import IllegalMove, Moves, StateMachine
from tests.helpers import flows


class Door(StrEnum):
    SHUT = "shut"
    OPEN = "open"
    GONE = "gone"


MOVES = Moves({Door.SHUT: (Door.OPEN, Door.GONE), Door.OPEN: (Door.SHUT, Door.OPEN), Door.GONE: ()})


class Flow(StateMachine[Door]):
    def __init__(self) -> None:
        super().__init__(MOVES)
        self.is_locked = False

    def validate(self) -> None:
        assert not self.is_locked or self.state is Door.SHUT


def test_a_flow_begins_in_the_first_row_and_moves_as_its_table_says():
    flow = Flow()
    assert flow.state is Door.SHUT
    flow.move(Door.OPEN)
    flow.move(Door.OPEN)
    with pytest.raises(IllegalMove, match="Flow: open -> gone"):
        flow.move(Door.GONE)
    assert flow.state is Door.OPEN


def test_staying_in_a_state_is_refused_unless_the_table_has_it():
    with pytest.raises(IllegalMove, match="shut -> shut"):
        Flow().move(Door.SHUT)


def test_a_table_names_every_state_and_a_way_to_it():
    with pytest.raises(ValueError, match="open"):
        Moves({Door.SHUT: (Door.GONE,), Door.GONE: ()})
    with pytest.raises(ValueError, match="open"):
        Moves({Door.SHUT: (Door.GONE,), Door.OPEN: (Door.SHUT,), Door.GONE: ()})


def test_the_drawing_has_a_line_for_each_state():
    assert MOVES.drawing() == "shut  ->  open, gone\nopen  ->  shut, open\ngone  ->  (end)"


def test_flows_made_in_a_test_are_validated_at_its_end():
    with pytest.MonkeyPatch.context() as patch:
        validation = flows.validated(patch)
        next(validation)
        flow = Flow()
        flow.is_locked = True
        flow.move(Door.OPEN)
        with pytest.raises(AssertionError):
            next(validation)
        flow.is_locked = False
