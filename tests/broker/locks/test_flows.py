from rmqkit.broker.locks import ballot, vote_recovery
from tests.helpers import flows


def test_the_tables_of_moves_are_drawn_in_the_heads():
    assert flows.is_drawn(vote_recovery.MOVES, vote_recovery)
    assert flows.is_drawn(ballot.MOVES, ballot)
