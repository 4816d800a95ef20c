from rmqkit.broker.locks import ballot, recall
from tests.helpers import flows


def test_the_tables_of_moves_are_drawn_in_the_heads():
    assert flows.is_drawn(recall.MOVES, recall)
    assert flows.is_drawn(ballot.MOVES, ballot)
