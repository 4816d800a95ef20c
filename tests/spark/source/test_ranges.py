"""Offset ranges: how they are shared out between batches and split. Without Spark."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit.spark.source.ranges import (
    OffsetRange,
    QueueKey,
    between,
    clusters,
    count,
    flat,
    nested,
    share,
    split,
    topics,
    waiting,
)

A0, A1, B0 = QueueKey("T", "broker-a", 0), QueueKey("T", "broker-a", 1), QueueKey("T", "broker-b", 0)

keys = st.builds(QueueKey, st.sampled_from(["A", "B-b", "%RETRY%g"]), st.sampled_from(["a", "b"]), st.integers(0, 20))
sizes = st.lists(st.integers(1, 10_000), min_size=1, max_size=30)


def ranges_of(lengths, begin=0):
    return [OffsetRange("T", "a", queue, begin, begin + size) for queue, size in enumerate(lengths)]


@given(st.dictionaries(keys, st.integers(0, 2**62)), st.randoms())
def test_the_same_queues_give_the_same_text_in_any_order(ends, random):
    mixed = list(ends)
    random.shuffle(mixed)
    text = json.dumps(nested(ends, ["c2", "c1"]))
    assert json.dumps(nested({key: ends[key] for key in mixed}, ["c1", "c2"])) == text
    assert flat(json.loads(text)) == ends
    assert clusters(json.loads(text)) == ("c1", "c2")
    assert topics(json.loads(text)) == tuple(sorted({key.topic for key in ends}))


def test_offsets_are_plain_sorted_dicts():
    offsets = nested({A1: 5, B0: 7, A0: 3}, ["DefaultCluster"])
    assert json.dumps(offsets) == (
        '{"@clusters": {"DefaultCluster": {}}, "T": {"broker-a": {"0": 3, "1": 5}, "broker-b": {"0": 7}}}'
    )


@pytest.mark.parametrize("offset", ["5", 1.5, None, True, -1])
def test_offsets_that_are_no_numbers_are_refused(offset):
    with pytest.raises(ValueError, match=f"T broker-a: queue '0' with offset {offset!r} is not valid"):
        flat({"T": {"broker-a": {"0": offset}}})


def test_a_batch_reads_what_has_grown():
    found = between(nested({A0: 3, A1: 5}), nested({A0: 10, A1: 5}))
    assert found == [OffsetRange("T", "broker-a", 0, 3, 10)]
    assert found[0].key == A0
    assert count(found) == 7


def test_a_new_queue_is_read_from_the_next_batch_on():
    first, second = nested({A0: 3, B0: 40}), nested({A0: 3, B0: 50})
    assert between(nested({A0: 3}), first) == []
    assert between(first, second) == [OffsetRange("T", "broker-b", 0, 40, 50)]


def test_a_queue_that_is_gone_or_goes_back_is_an_error():
    with pytest.raises(ValueError, match="T broker-b:0 is in the offsets that a batch begins at"):
        between(nested({A0: 3, B0: 1}), nested({A0: 3}))
    with pytest.raises(ValueError, match="back from offset 3 to 2"):
        between(nested({A0: 3}), nested({A0: 2}))
    assert between(nested({A0: 3}), nested({A0: 2}), may_go_back=True) == []


def test_what_waits_leaves_out_queues_that_one_side_lacks():
    assert waiting({A0: 3, A1: 9}, {A0: 4, A1: 2, B0: 7}) == [OffsetRange("T", "broker-a", 0, 3, 4)]


def shares_of(lengths, amount, begin=0):
    """Return the size of the share of each range."""
    found = {each.queue: each.size for each in share(ranges_of(lengths, begin), amount)}
    return [found.get(each.queue, 0) for each in ranges_of(lengths)]


@given(sizes, st.integers(1, 50_000), st.integers(0, 10**9))
def test_shares_add_up_to_the_amount(lengths, amount, turn):
    shares = shares_of(lengths, amount, turn)
    assert sum(shares) == min(amount, sum(lengths))
    assert all(0 <= given <= size for given, size in zip(shares, lengths, strict=True))
    if amount >= len(lengths):
        assert min(shares) >= 1


def test_shares_are_in_proportion_to_what_waits():
    assert shares_of([1000, 3000, 6000], 103) == [10, 31, 62]
    assert shares_of([1, 1, 998], 100) == [1, 1, 98]


@given(sizes, st.integers(1, 40))
def test_no_queue_starves(lengths, messages_max):
    """Even with small batches every queue advances once per round over all queues."""
    whole = ranges_of(lengths, begin=7)
    position = {each.key: each.begin for each in whole}
    for _ in range(-(-len(lengths) // messages_max)):
        left = [each._replace(begin=position[each.key]) for each in whole if position[each.key] < each.end]
        for each in share(left, messages_max):
            assert each.begin == position[each.key]
            position[each.key] = each.end
    assert all(position[each.key] > 7 or count(whole) == 0 for each in whole)


@given(sizes, st.integers(0, 200), st.integers(0, 3000))
def test_pieces_are_the_ranges_and_keep_to_their_bounds(lengths, partitions_min, messages_max):
    whole = ranges_of(lengths, begin=11)
    pieces = split(whole, partitions_min=partitions_min, messages_max=messages_max)
    for each in whole:
        mine = [piece for piece in pieces if piece.queue == each.queue]
        assert mine[0].begin == each.begin
        assert mine[-1].end == each.end
        assert all(before.end == after.begin for before, after in pairwise(mine))
        assert all(piece.size > 0 for piece in mine)
    assert len(pieces) >= min(partitions_min, count(whole))
    if messages_max:
        assert max(piece.size for piece in pieces) <= messages_max


def test_the_largest_range_is_cut_first():
    assert [piece.size for piece in split(ranges_of([100, 10]), partitions_min=3)] == [50, 50, 10]
    assert split(ranges_of([100, 10])) == ranges_of([100, 10])
    assert split([], partitions_min=4) == []
