"""The offset that may be committed while messages are in flight (ProcessQueue)."""

from rmqkit.client.consumers.process_queue import ProcessQueue
from tests.client.producers.test_outgoing_message import received


def message(offset, body=b"12345"):
    each = received(body)
    each.record = each.record._replace(queue_offset=offset)
    return each


def filled(*offsets):
    queue = ProcessQueue()
    messages = [message(offset) for offset in offsets]
    queue.put(messages)
    return queue, messages


def test_removing_commits_up_to_the_first_that_is_left_as_removeMessage():
    queue, (m3, m4, m7) = filled(3, 4, 7)
    assert queue.remove([m4]) == 3
    assert queue.remove([m3]) == 7
    assert queue.remove([m7]) == 8
    assert queue.remove([m7]) == -1


def test_count_size_and_span():
    queue, messages = filled(3, 4, 7)
    assert (queue.count, queue.size, queue.span) == (3, 15, 4)
    queue.remove(messages[:1])
    assert (queue.count, queue.size, queue.span) == (2, 10, 3)
    queue.remove(messages)
    assert (queue.count, queue.size, queue.span) == (0, 0, 0)


def test_what_was_put_before_is_not_put_again():
    queue, _ = filled(3, 4)
    queue.put([message(4), message(5)])
    assert queue.count == 3


def test_taking_keeps_the_order_and_commits_what_was_taken_as_takeMessages_and_commit():
    queue, _ = filled(3, 4, 7)
    taken = queue.take(2)
    assert [each.queue_offset for each in taken] == [3, 4]
    assert queue.count == 3
    assert queue.commit() == 5
    assert queue.count == 1
    assert queue.commit() == -1


def test_what_is_put_back_comes_first_again_as_makeMessageToConsumeAgain():
    queue, _ = filled(3, 4, 7)
    queue.take(2)
    queue.put_back()
    assert [each.queue_offset for each in queue.take(3)] == [3, 4, 7]
