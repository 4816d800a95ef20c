"""The table of long polls: which calls wait, and that finished ones leave it."""

import gc
import weakref

from rmqkit.runtime.waiters import ArrivalWaiter, ArrivalWaiters


def waiter(woken, name, deadline_ms, conn=None, offset=0):
    return ArrivalWaiter(("T", 0), offset, deadline_ms, conn, None, lambda arrived: woken.append((name, arrived)))


def test_each_ends_at_its_deadline_in_the_order_of_parking():
    table, woken = ArrivalWaiters(10), []
    for name, deadline_ms in (("late", 30), ("first", 20), ("second", 20)):
        assert table.park(waiter(woken, name, deadline_ms))
    assert table.next_deadline_ms() == 20
    assert table.expire(19) == 20
    assert woken == []
    assert table.expire(20) == 30
    assert woken == [("first", False), ("second", False)]
    assert table.expire(30) is None
    assert table.count == 0


def test_the_deadline_of_one_that_was_woken_is_forgotten():
    table, woken = ArrivalWaiters(10), []
    for name, deadline_ms in (("a", 20), ("b", 30)):
        table.park(waiter(woken, name, deadline_ms, offset=0 if name == "a" else 5))
    table.arrived(("T", 0), 0, 0)
    assert woken == [("a", True)]
    assert table.expire(20) == 30
    table.park(waiter(woken, "c", 20))
    assert table.next_deadline_ms() == 20


def test_nothing_is_kept_of_pulls_that_were_answered():
    """A pull waits up to a minute; on a busy queue thousands per second are answered at once."""
    table, woken = ArrivalWaiters(10), []
    kept = []
    for number in range(5000):
        call = type("Parked", (), {})()
        kept.append(weakref.ref(call))
        table.park(
            ArrivalWaiter(("T", 0), 0, 15_000 + number // 5, None, None, lambda arrived, call=call: woken.append(call))
        )
        table.arrived(("T", 0), 0, 0)
        woken.clear()
    del call
    gc.collect()
    assert not any(ref() for ref in kept)
    assert table.count == 0


def test_lost_connections_and_a_full_table():
    table, woken, conn = ArrivalWaiters(2), [], object()
    assert table.park(waiter(woken, "a", 20, conn))
    assert table.park(waiter(woken, "b", 20))
    assert not table.park(waiter(woken, "c", 20))
    table.drop(conn)
    assert table.expire(20) is None
    assert woken == [("b", False)]


def test_arrived_records_are_tried_one_by_one():
    """A uniform batch is one arrival: a waiter gets it for the first record that it accepts."""
    table, woken, tried = ArrivalWaiters(10), [], []

    def accepts(offset):
        tried.append(offset)
        return offset == 12

    for name, offset, filter_ in (("later", 13, None), ("picky", 0, accepts), ("beyond", 14, None)):
        waiter = ArrivalWaiter(("T", 0), offset, 100, None, None, lambda arrived, name=name: woken.append(name), filter_)
        assert table.park(waiter)
    table.arrived(("T", 0), 10, 0, 4)
    assert woken == ["picky", "later"]
    assert tried == [10, 11, 12]
    table.arrived(("T", 0), 14, 0, 2)
    assert (woken[-1], table.count) == ("beyond", 0)
