"""The table of promises: whole, consistent with itself, and the one that the page shows."""

from itertools import product

import pytest

from rmqkit.drill.plan import Flush, Mode, Replication
from rmqkit.drill.promises import PROMISES, table
from rmqkit.drill.promises.table import Harm, Where, cell
from tests.tidy.tree import ROOT

MODES = [Mode(*each) for each in product(Replication, Flush)]
STRENGTH = {Where.NOWHERE: 0, Where.SLAVE: 1, Where.MASTER: 2}


def test_every_mode_and_fault_has_a_cell():
    assert set(table.TABLE) == set(product(Replication, Flush))
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
        assert (cell(mode, Harm.DISK_LOSS).where is Where.SLAVE) == (mode.replication is not Replication.ASYNC)


def test_the_page_shows_this_table():
    """After a change: python -m rmqkit.drill.promises.table, into docs/promises.md between the two marks."""
    page = (ROOT / "docs" / "promises.md").read_text()
    assert table.BEGIN + page.partition(table.BEGIN)[2].partition(table.END)[0] + table.END + "\n" == table.markdown()


def test_the_page_shows_what_is_promised_at_takeovers():
    """As above, with the other two marks."""
    page = (ROOT / "docs" / "promises.md").read_text()
    assert table.takeover_markdown().strip() in page
    assert {each.promise for each in table.TAKEOVER} - {""} <= set(PROMISES)
