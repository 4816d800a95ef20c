"""The states of pre-online: the drawings in the module heads match the tables."""

from rmqkit.broker.roles import pre_online, reverse_sync
from tests.helpers import flows


def test_the_heads_have_the_drawings():
    assert flows.is_drawn(pre_online.MASTER_MOVES, pre_online)
    assert flows.is_drawn(pre_online.SLAVE_MOVES, pre_online)
    assert flows.is_drawn(reverse_sync.MOVES, reverse_sync)
