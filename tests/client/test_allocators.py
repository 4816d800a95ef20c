"""Shares of a group's queues. The literals are the results of Apache's 5.5.0 classes."""

import pytest

from rmqkit.client.allocators import ALLOCATORS, Average, ByConfig, Circle, ConsistentHash, MachineRoom, sorted_ids
from rmqkit.wire.fastjson import MessageQueue

IDS = ["10.0.0.1@7#1", "10.0.0.2@7#2", "10.0.0.3@9#3"]
QUEUES = sorted(MessageQueue("T", broker, i) for broker in ("broker-a", "broker-b") for i in range(8))


def share(allocator, client_id, queues=QUEUES, ids=IDS):
    taken = allocator.allocate("G", client_id, queues, ids)
    return " ".join(f"{queue.broker_name}/{queue.queue_id}" for queue in taken)


def all_shares(allocator, queues=QUEUES, ids=IDS):
    return [share(allocator, each, queues, ids) for each in ids]


def test_average_gives_blocks_as_AllocateMessageQueueAveragely():
    assert all_shares(Average()) == [
        "broker-a/0 broker-a/1 broker-a/2 broker-a/3 broker-a/4 broker-a/5",
        "broker-a/6 broker-a/7 broker-b/0 broker-b/1 broker-b/2",
        "broker-b/3 broker-b/4 broker-b/5 broker-b/6 broker-b/7",
    ]


@pytest.mark.parametrize(
    ("queue_count", "sizes"),
    [
        (1, [1, 0, 0, 0]),
        (2, [1, 1, 0, 0]),
        (4, [1, 1, 1, 1]),
        (5, [2, 1, 1, 1]),
        (6, [2, 2, 1, 1]),
        (7, [2, 2, 2, 1]),
        (10, [3, 3, 2, 2]),
    ],
)
def test_average_sizes_as_AllocateMessageQueueAveragely(queue_count, sizes):
    queues = [MessageQueue("topic", "brokerName", i) for i in range(queue_count)]
    ids = [f"CID_PREFIX{i}" for i in range(4)]
    shares = [Average().allocate("", each, queues, ids) for each in ids]
    assert [len(each) for each in shares] == sizes
    assert [queue for each in shares for queue in each] == queues


def test_circle_deals_out_as_AllocateMessageQueueAveragelyByCircle():
    assert all_shares(Circle()) == [
        "broker-a/0 broker-a/3 broker-a/6 broker-b/1 broker-b/4 broker-b/7",
        "broker-a/1 broker-a/4 broker-a/7 broker-b/2 broker-b/5",
        "broker-a/2 broker-a/5 broker-b/0 broker-b/3 broker-b/6",
    ]


def test_consistent_hash_rings_as_AllocateMessageQueueConsistentHash():
    assert all_shares(ConsistentHash()) == [
        "broker-a/2 broker-a/3 broker-b/7",
        "broker-a/0 broker-a/5",
        "broker-a/1 broker-a/4 broker-a/6 broker-a/7 broker-b/0 broker-b/1 broker-b/2 broker-b/3 broker-b/4 broker-b/5 "
        "broker-b/6",
    ]


def test_consistent_hash_moves_only_queues_of_the_member_that_left():
    before = {queue: each for each in IDS for queue in ConsistentHash().allocate("G", each, QUEUES, IDS)}
    stay = IDS[:2]
    after = {queue: each for each in stay for queue in ConsistentHash().allocate("G", each, QUEUES, stay)}
    assert all(after[queue] == owner for queue, owner in before.items() if owner in stay)
    assert set(after) == set(QUEUES)


def test_machine_room_takes_its_rooms_as_AllocateMessageQueueByMachineRoom():
    queues = [MessageQueue("T", broker, i) for broker in ("hz@a", "hz@b", "sh@c", "plain") for i in range(4)]
    assert all_shares(MachineRoom({"hz"}), queues) == [
        "hz@a/0 hz@a/1 hz@b/2",
        "hz@a/2 hz@a/3 hz@b/3",
        "hz@b/0 hz@b/1",
    ]


def test_config_takes_what_was_written_and_exists():
    wanted = [QUEUES[3], MessageQueue("Other", "broker-a", 0)]
    assert ByConfig(wanted).allocate("G", "anybody", QUEUES, IDS) == [QUEUES[3]]


@pytest.mark.parametrize("name", ["average", "circle", "consistent-hash", "machine-room"])
def test_a_member_nobody_knows_gets_nothing(name):
    assert ALLOCATORS[name]().allocate("G", "stranger", QUEUES, IDS) == []


@pytest.mark.parametrize("name", ["average", "circle", "consistent-hash", "machine-room"])
@pytest.mark.parametrize(("queues", "ids", "client_id"), [([], IDS, IDS[0]), (QUEUES, [], "x"), (QUEUES, IDS, "")])
def test_empty_lists_are_refused_as_AbstractAllocateMessageQueueStrategy_check(name, queues, ids, client_id):
    with pytest.raises(ValueError):
        ALLOCATORS[name]().allocate("G", client_id, queues, ids)


def test_ids_sort_as_Java_sorts_strings():
    ids = ["10.0.0.9@1", "10.0.0.10@1", "\U0001f600@1", "Ａ@1", "Z@1", "a@1", "a@1"]
    assert sorted_ids(ids) == ["10.0.0.10@1", "10.0.0.9@1", "Z@1", "a@1", "\U0001f600@1", "Ａ@1"]
