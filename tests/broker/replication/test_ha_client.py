from rmqkit.broker.replication import ha_state, truncation
from tests.helpers import flows


def test_the_states_are_drawn_as_they_are():
    assert flows.is_drawn(ha_state.MOVES, ha_state)
    assert flows.is_drawn(truncation.MOVES, truncation)
