"""Ports of a cluster's nodes: no two nodes get the same one, although none is open yet."""

from tests.helpers import ports


def test_ports_that_were_given_are_not_given_again():
    offsets = (-2, 0, 1)
    bases = [ports.free_base(offsets) for _ in range(ports.REMEMBERED // len(offsets))]
    given = [base + offset for base in bases for offset in offsets]
    assert len(set(given)) == len(given) == 510
