"""The table of figures in README.md: the rows in which Apache is ahead are there and marked."""

import statistics

import pytest

from tests.bench import against_apache, figures
from tests.bench.rows import FIRST, ROWS, WARM
from tools.pages import readme


@pytest.mark.parametrize(
    ("ratio", "less", "text"),
    [(0.94, False, "**0.94**"), (1.0, False, "1.00"), (1.2, True, "**1.20**"), (0.5, True, "0.50")],
)
def test_a_bold_ratio_says_that_apache_is_ahead(ratio, less, text):
    assert readme.ratio_text(ratio, less=less) == text


@pytest.mark.parametrize("name", ROWS)
def test_the_readme_has_every_row_unless_it_is_like_another_and_apache_is_not_ahead(name):
    lines = [line for line in readme.LINES if any(cell.file == against_apache.FIGURES for cell in line.cells)]
    shown = {(cell.row, cell.value): line.less for line in lines for cell in line.cells}
    row = ROWS[name]
    assert ((name, row.value) in shown) != (name in readme.APART)
    if name not in readme.APART:
        assert shown[name, row.value] is row.less
        return
    stored = figures.load(against_apache.FIGURES)["rows"][name]
    ratio = statistics.median(figures.ratios(stored.get(WARM) or stored[FIRST], row.value))
    assert ratio <= 1 if row.less else ratio >= 1
