"""The history: growth, windows, limits, and its file."""

import pytest

from rmqkit_usage.history import Growth, History, Point

MINUTE = 60_000


def made(**limits: int) -> History:
    return History(**{"points_max": 100, "topics_max": 100, **limits})


def rounds(history: History, *ends: int, topic: str = "T", size: int = 100, first: int = 1) -> None:
    """Run one round per minute, from minute `first`.

    The topic has one queue, and each message has `size` bytes.
    """
    for number, end in enumerate(ends, first):
        before = history.ends_of(topic)
        added = 0 if before is None else end - (before[0] if before else 0)
        history.add(topic, [end], end, added * size, number * MINUTE)
        history.end_round([topic], 0, number * MINUTE)


def test_growth_is_the_difference_to_the_beginning_of_the_window():
    history = made()
    rounds(history, 10, 15, 15, 40)
    line = history.lines["T"]
    assert line.growth(None) == Growth(30, 3_000, MINUTE)
    assert line.growth(3 * MINUTE) == Growth(25, 2_500, 3 * MINUTE)
    assert line.growth(2 * MINUTE + 1) == Growth(25, 2_500, 2 * MINUTE + 1)
    assert line.growth(4 * MINUTE) == Growth(0, 0, 4 * MINUTE)
    assert line.growth(-5) == Growth(30, 3_000, MINUTE), "the line begins later"


def test_a_topic_at_rest_costs_no_point():
    history = made()
    rounds(history, *[7] * 50)
    assert history.lines["T"].points == [Point(MINUTE, 7, 0)]
    assert history.round_ms == 50 * MINUTE


def test_messages_stored_before_the_first_round_are_no_growth_but_a_new_topic_is():
    history = made()
    history.add("old", [100], 100, 0, MINUTE)
    history.end_round(["old"], 0, MINUTE)
    assert history.ends_of("old") == [100]
    assert history.ends_of("new") == ()
    history.add("new", [30, 12], 42, 4_200, 2 * MINUTE)
    assert history.lines["old"].growth(None).messages == 0
    assert history.lines["new"].growth(None) == Growth(42, 4_200, MINUTE)


def test_an_empty_topic_is_left_out_until_its_first_message():
    history = made()
    rounds(history, 0, 0)
    assert history.lines == {}
    rounds(history, 5, first=3)
    assert history.lines["T"].points == [Point(2 * MINUTE, 0, 0), Point(3 * MINUTE, 5, 500)]


def test_points_are_bounded_and_the_oldest_go():
    history = made(points_max=5)
    rounds(history, *range(10, 60, 2))
    line = history.lines["T"]
    assert [point.messages for point in line.points] == [50, 52, 54, 56, 58]
    assert line.growth(None).messages == 8


def test_topics_are_bounded_and_a_deleted_one_makes_room():
    history = made(topics_max=2)
    assert [history.add(topic, [1], 1, 0, MINUTE) for topic in ("a", "b", "c")] == [True, True, False]
    assert history.add("empty", [0], 0, 0, MINUTE), "an empty topic needs no room"
    history.end_round(["b", "c"], 1, MINUTE)
    assert history.left_out == 1
    assert history.add("c", [1], 1, 0, 2 * MINUTE)
    assert sorted(history.lines) == ["b", "c"]


@pytest.mark.parametrize("ends", [[3, 9], [9], [0, 0]])
def test_a_topic_that_was_made_again_begins_anew(ends):
    history = made()
    history.add("T", [5, 5], 10, 0, MINUTE)
    history.end_round(["T"], 0, MINUTE)
    history.add("T", ends, sum(ends), 700, 2 * MINUTE)
    points = history.lines["T"].points if sum(ends) else []
    assert points == ([Point(MINUTE, 0, 0), Point(2 * MINUTE, sum(ends), 700)] if sum(ends) else [])


def test_more_queues_are_growth():
    history = made()
    history.add("T", [5], 5, 0, MINUTE)
    history.end_round(["T"], 0, MINUTE)
    history.add("T", [5, 2], 7, 50, 2 * MINUTE)
    assert history.lines["T"].growth(None) == Growth(2, 50, MINUTE)


def test_a_clock_that_is_set_back_turns_no_line_around():
    history = made()
    rounds(history, 1, 2, first=10)
    rounds(history, 3, first=4)
    times = [point.at_ms for point in history.lines["T"].points]
    assert times == sorted(times)
    assert history.round_ms == 11 * MINUTE


def test_the_points_of_a_window_begin_with_the_one_before_it():
    history = made()
    rounds(history, 10, 20, 20, 40)
    line = history.lines["T"]
    assert [point.messages for point in line.points_since(None)] == [10, 20, 40]
    assert [point.messages for point in line.points_since(3 * MINUTE)] == [20, 40]
    assert [point.messages for point in line.points_since(0)] == [10, 20, 40]


def test_a_file_brings_everything_back():
    history = made()
    rounds(history, 10, 20, 40)
    again = made()
    again.take(history.encode())
    assert again.lines == history.lines
    assert again.round_ms == history.round_ms
    assert again.ends_of("T") == [40]


def test_a_file_is_cut_to_smaller_limits():
    history = made()
    rounds(history, *range(1, 20))
    for topic in "abc":
        history.add(topic, [1], 1, 0, 20 * MINUTE)
    small = made(points_max=3, topics_max=2)
    small.take(history.encode())
    assert sorted(small.lines) == ["T", "a"]
    assert len(small.lines["T"].points) == 3


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"version": 1}',
        b'{"version": 2, "round_ms": 0, "topics": {}}',
        b'{"version": 1, "round_ms": 0, "topics": {"T": {"points": [], "queue_ends": []}}}',
        b'{"version": 1, "round_ms": 0, "topics": {"T": {"points": [[1, "x", 3]], "queue_ends": []}}}',
        pytest.param(b"[" * 100_000, id="deep"),
    ],
)
def test_an_invalid_history_changes_nothing(data):
    history = made()
    rounds(history, 10, 20)
    before = history.encode()
    with pytest.raises(ValueError):
        history.take(data)
    assert history.encode() == before
