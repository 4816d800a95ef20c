"""Histories: rows from many threads, up-to-date views, and files that restore what was written."""

import json
import threading

import pytest

from rmqkit.drill import history as names
from rmqkit.drill.history import History, HistoryRow, read_lines, write_lines
from rmqkit.drill.timeline import derive
from tests.drill.hand import BEGIN_MS, whole


def test_rows_of_many_threads_are_numbered_in_their_order():
    history = History()

    def add(name):
        for at_ms in range(300):
            history.add("send", client=name, key=f"{name}-{at_ms}", invoke_ms=at_ms)

    threads = [threading.Thread(target=add, args=(f"w{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [row.op for row in history.rows] == list(range(1200))
    assert len(history.sends) == 1200


def test_views_keep_up_with_the_rows():
    history = History()
    assert history.event_ms("x") is None
    history.add("event", key="x", invoke_ms=5)
    assert history.event_ms("x") == 5
    assert len(history.by_kind["event"]) == 1


def test_lines_give_back_what_was_written(tmp_path):
    history = whole().history
    write_lines(history, tmp_path / "h.jsonl")
    assert read_lines(tmp_path / "h.jsonl").rows == history.rows
    first = json.loads((tmp_path / "h.jsonl").read_text().splitlines()[0])
    assert list(first) == list(HistoryRow._fields)


@pytest.mark.parametrize("line", ["{", '{"op": 1}', '{"sped": 1}', "[]"])
def test_a_line_that_is_no_row_is_named(tmp_path, line):
    (tmp_path / "h.jsonl").write_text(line + "\n")
    with pytest.raises(ValueError, match=r"h.jsonl:1 is not a row"):
        read_lines(tmp_path / "h.jsonl")


def test_the_story_has_all_rows_of_a_message_and_the_events():
    story = whole().history.story("b")
    assert [row.kind for row in story if row.key == "b"] == ["send", "deliver", "read", "read"]
    assert names.FAULT_BEGINS in [row.key for row in story]
    assert [row.complete_ms for row in story] == sorted(row.complete_ms for row in story)


def test_moments_are_found_in_the_rows():
    hand = whole().failed("x", at_ms=1_200).failed("y", at_ms=1_100).send("z", 9, at_ms=2_200).send("e", 4, at_ms=2_300)
    hand.history.add("probe", client="probe", invoke_ms=1_400, broker="broker-a", node="broker-a-1", broker_id=1)
    hand.deliver("a", 0, at_ms=1_300, group="late", client="late-0")
    derive(hand.history)
    found = {row.key: row.invoke_ms for row in hand.history.events}
    assert found[names.FIRST_FAILED_SEND] == 1_105
    assert found[names.FIRST_SEND_AGAIN] == 2_205
    assert found[names.SLAVE_READ] == 1_400
    assert found[names.LATE_READ] == 1_300


def test_without_a_fault_there_are_no_moments():
    history = History()
    history.add("send", key="a", invoke_ms=BEGIN_MS, outcome="fail")
    derive(history)
    assert not history.events


def test_views_are_computed_once_until_a_row_is_added():
    history = History()
    history.add("event", key="first", invoke_ms=1)
    calls = []

    def keys(history):
        calls.append(len(history))
        return [row.key for row in history.events]

    assert [history.view(keys), history.view(keys)] == [["first"], ["first"]]
    assert (history.last_ms, calls) == (1, [1])
    history.add("event", key="second", invoke_ms=2)
    assert (history.view(keys), history.last_ms, calls) == (["first", "second"], 2, [1, 2])


def test_a_row_that_is_added_during_a_view_belongs_to_the_next_one():
    history = History()

    def count(history):
        counted = len(history.rows)
        if not counted:
            history.add("event", key="late", invoke_ms=1)
            assert history.view(count) == 1
        return counted

    assert [history.view(count), history.view(count)] == [0, 1]
