"""The table of promises is complete and consistent."""

from itertools import product

import pytest

from rmqkit.drill.plan import ELECTED, Flush, Mode, ReplicationMode
from rmqkit.drill.promises import table
from rmqkit.drill.promises.table import Harm, Where, cell

#: with controllers a slave becomes master, so its log is never in memory only
MODES = [Mode(*each) for each in product(ReplicationMode, Flush) if each not in product(ELECTED, [Flush.POOL])]
STRENGTH = {Where.NOWHERE: 0, Where.SLAVE: 1, Where.MASTER: 2}


def test_every_mode_and_fault_has_a_cell():
    assert set(table.TABLE) == {(mode.replication, mode.flush) for mode in MODES}
    assert all(set(cells) == set(Harm) for cells in table.TABLE.values())


@pytest.mark.parametrize("harm", Harm)
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_an_answer_that_says_less_never_promises_more(mode, harm):
    best = STRENGTH[cell(mode, harm).where]
    for status in ("FLUSH_DISK_TIMEOUT", "FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE"):
        assert STRENGTH[cell(mode, harm, status).where] <= best
    assert STRENGTH[cell(mode, harm, copies=1).where] <= best
    assert cell(mode, harm, hits_master=False).where is Where.MASTER


def test_one_copy_never_outlives_its_disk():
    for mode in MODES:
        assert cell(mode, Harm.DISK_LOSS, copies=1).where is Where.NOWHERE
        kept = cell(mode, Harm.DISK_LOSS).where
        if mode.replication in ELECTED:
            assert (kept is Where.MASTER) == (mode.replication is ReplicationMode.ALL_ACK)
        else:
            assert (kept is Where.SLAVE) == (mode.replication is not ReplicationMode.ASYNC)
