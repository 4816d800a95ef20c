"""How two checkouts are compared."""

from pathlib import Path

from tests.bench.alternating import HERE
from tests.bench.checkouts import compare


def test_the_checkouts_take_turns_and_the_ratios_are_of_pairs(capsys):
    figures = {HERE: iter([(2.0,), (3.0,), (8.0,)]), Path("/other"): iter([(1.0,), (2.0,), (2.0,)])}
    order = []

    def measure(checkout):
        order.append(checkout)
        return next(figures[checkout])

    compare(measure, ["rate"], Path("/other"), 3)
    assert order == [HERE, Path("/other"), Path("/other"), HERE, HERE, Path("/other")]
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "rate: 3.0 and 2.0 in the other checkout; ratio 2.000 [1.500-4.000]"


def test_one_checkout_alone(capsys):
    compare(lambda checkout: (1.0, 5.0), ["rate", "CPU"], None, 2)
    assert capsys.readouterr().out.splitlines()[-2:] == ["rate: 1.0", "CPU: 5.0"]
