"""Which pulls are sent, for any responses in any order."""

from hypothesis import given
from hypothesis import strategies as st

from rmqkit.spark.source.pulls import BYTES_AHEAD, COUNT_FIRST, Pulls


@given(
    st.integers(0, 50),
    st.integers(1, 4000),
    st.integers(1, 6),
    st.lists(
        st.tuples(st.integers(0, 10), st.integers(1, 100), st.sampled_from(["all", "all", "cut", "restart"])), max_size=60
    ),
)
def test_the_pulled_parts_form_the_range_without_a_gap(begin, size, depth, story):
    pulls: Pulls[range] = Pulls(begin, begin + size, depth=depth)
    flying, out = [], []
    steps = iter(story)
    for _ in range(10_000):
        flying += pulls.due()
        if pulls.position == pulls.end:
            break
        which, count_max, kind = next(steps, (0, 32, "all"))
        pull = flying.pop(which % len(flying))
        if kind == "restart":
            pulls.restart()
            flying.clear()
        elif kind == "cut" and not pulls.is_first(pull):
            pulls.cut(pull)
            flying = [each for each in flying if each.begin < pull.begin]
        else:
            end = min(pull.end, pull.begin + min(pull.count, count_max))
            pulls.brought(pull, range(pull.begin, end), end)
        for part in pulls.done():
            out += part
        assert len(flying) <= depth + len(story)
    assert out == list(range(begin, begin + size))


def test_the_first_pull_is_alone_and_its_answer_decides_the_count():
    pulls: Pulls[str] = Pulls(0, 10_000, depth=3)
    (first,) = pulls.due()
    assert (first.begin, first.end, first.count) == (0, COUNT_FIRST, COUNT_FIRST)
    assert pulls.due() == []
    pulls.brought(first, "first", 32)
    assert list(pulls.done()) == ["first"]
    assert [(pull.begin, pull.end) for pull in pulls.due()] == [(32, 64), (64, 96), (96, 128)]


def test_half_of_what_may_be_in_flight_is_asked_for_at_once():
    pulls: Pulls[str] = Pulls(0, 10_000, depth=4)
    (first,) = pulls.due()
    pulls.brought(first, "", 32)
    list(pulls.done())
    flying = pulls.due()
    assert len(flying) == 4
    asked = []
    for pull in flying:
        pulls.brought(pull, "", pull.end)
        list(pulls.done())
        asked.append(len(pulls.due()))
    assert asked == [0, 2, 0, 2]


def test_large_answers_are_fewer():
    pulls: Pulls[str] = Pulls(0, 10_000, depth=16)
    (first,) = pulls.due()
    pulls.brought(first, "", 1, size=BYTES_AHEAD // 3)
    list(pulls.done())
    assert len(pulls.due()) == 3


def test_a_hole_is_asked_for_before_anything_new():
    pulls: Pulls[str] = Pulls(0, 10_000, depth=3)
    (first,) = pulls.due()
    pulls.brought(first, "first", 32)
    list(pulls.done())
    one, two, three = pulls.due()
    pulls.brought(two, "two", 96)
    assert not pulls.is_whole
    pulls.brought(one, "one", 40)
    (hole,) = pulls.due()
    assert (hole.begin, hole.end, hole.count) == (40, 64, 24)
    assert list(pulls.done()) == ["one"]
    pulls.brought(hole, "hole", 64)
    assert list(pulls.done()) == ["hole", "two"]
    assert pulls.is_whole
    pulls.brought(three, "three", 128)
    assert list(pulls.done()) == ["three"]


def test_the_count_grows_when_a_broker_gives_more():
    pulls: Pulls[str] = Pulls(0, 1_000_000, depth=1)
    (first,) = pulls.due()
    pulls.brought(first, "", 4)
    for _ in range(200):
        list(pulls.done())
        (pull,) = pulls.due()
        pulls.brought(pull, "", min(pull.end, pull.begin + 500))
    assert pulls.count >= 256


def test_with_a_filter_one_pull_is_in_flight_and_ends_where_its_answer_says():
    pulls: Pulls[str] = Pulls(0, 10_000, is_filtered=True, depth=4)
    (first,) = pulls.due()
    assert (first.begin, first.end) == (0, 10_000)
    pulls.brought(first, "first", 800)
    assert list(pulls.done()) == ["first"]
    (second,) = pulls.due()
    assert (second.begin, second.end, second.count) == (800, 10_000, COUNT_FIRST)
