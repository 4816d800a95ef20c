"""Delay levels.

Source: `ScheduleMessageService.java`, `HookUtils.transformDelayLevelMessage`.
"""

import errno
import json
from itertools import pairwise

import pytest

from rmqkit.broker.special.delay.delivery import MESSAGES_PER_TURN
from rmqkit.wire import properties as props
from rmqkit.wire.batch import BatchMessage, encode_batch
from rmqkit.wire.bodies import DelayOffsetTable
from rmqkit.wire.codes import RequestCode, ResponseCode
from tests.broker.conftest import broker_of
from tests.broker.requests import UNIQ, pull, pull_fields, records, send, send_fields, with_topic
from tests.helpers.script import Script, write_command

SCHEDULE = "SCHEDULE_TOPIC_XXXX"


def delayed(client, level, body=b"later", topic="T", more="", **changes):
    return send(client, topic, body, i=f"{UNIQ}DELAY\x01{level}\x02{more}", **changes)


def bodies(client, topic="T", queue_id=0, offset=0):
    return [each.body for each in records(pull(client, topic, queue_id, offset))]


def opened_again(broker, *overrides):
    """Start a new broker on the same folder at the same time of day."""
    broker.disk.close()
    broker.disk.completions.clear()
    again = Script(broker_of(*overrides), disk=broker.disk, start=False)
    again.clock.wall_ms, again.clock.mono_ms = broker.clock.wall_ms, broker.clock.mono_ms
    again.turn(again.node.start)
    for _ in range(100):
        again.finish_disk()
        again.turn()
        if again.node.serving:
            break
    return again


def stop(broker):
    broker.turn(broker.node.stop)
    for _ in range(200):
        if broker.node.stopped:
            return
        broker.advance(10)
    raise AssertionError("the broker does not stop")


def saved(broker):
    return DelayOffsetTable.decode(bytes(broker.disk.files["config/delayOffset.json"]))


def test_a_delayed_message_comes_when_it_is_due_and_never_before(broker):
    client = with_topic(broker)
    answer = delayed(client, 2, more="TAGS\x01A\x02", e="3")
    assert (answer.code, answer.ext["queueId"], answer.ext["queueOffset"]) == (0, "3", "0")
    broker.advance(4999)
    assert bodies(client, queue_id=3) == []
    broker.advance(1)
    (record,) = records(pull(client, queue_id=3))
    assert (record.body, record.topic, record.queue_offset) == (b"later", "T", 0)
    assert record.store_ms == broker.clock.wall_ms


def test_it_waits_in_the_queue_of_its_level(broker):
    client = with_topic(broker)
    delayed(client, 3, e="2")
    (record,) = records(pull(client, SCHEDULE, 2))
    mapping = props.decode(record.properties)
    assert (mapping["REAL_TOPIC"], mapping["REAL_QID"], mapping["DELAY"]) == ("T", "2", "3")
    (entry,) = broker.node.store.entries(SCHEDULE, 2, 0, 10)
    assert entry.tags_code == record.store_ms + 10_000


def test_what_is_delivered_is_what_was_sent(broker):
    """The delay properties stay, as in Apache; the tags code is computed again."""
    client = with_topic(broker)
    delayed(client, 1, more="TAGS\x01TagA\x02KEYS\x01k1\x02", h="7", g="1759999999999", j="2")
    broker.advance(1000)
    (record,) = records(pull(client, subscription="TagA"))
    mapping = props.decode(record.properties)
    assert mapping["DELAY"] == "1"
    assert mapping["REAL_TOPIC"] == "T"
    assert mapping["REAL_QID"] == "0"
    assert mapping["KEYS"] == "k1"
    assert (record.flag, record.born_ms, record.reconsume_times) == (7, 1_759_999_999_999, 2)
    assert records(pull(client, subscription="TagB")) == []
    broker.advance(10_000)
    assert len(bodies(client)) == 1, "delivered once"


def test_a_level_above_the_highest_is_the_highest(make):
    broker = make("messageDelayLevel=1s 2s 7s")
    client = with_topic(broker)
    delayed(client, 99)
    (record,) = records(pull(client, SCHEDULE, 2))
    assert props.decode(record.properties)["DELAY"] == "3"
    broker.advance(6999)
    assert bodies(client) == []
    broker.advance(1)
    assert bodies(client) == [b"later"]


@pytest.mark.parametrize("level", ["0", "-1"])
def test_a_level_below_one_is_no_delay(broker, level):
    client = with_topic(broker)
    assert delayed(client, level).code == 0
    assert bodies(client) == [b"later"]


def test_a_delay_level_beats_timers(broker):
    client = with_topic(broker)
    assert delayed(client, 1, more="TIMER_DELAY_SEC\x0160\x02TIMER_DELIVER_MS\x0119\x02").code == 0
    broker.advance(1000)
    (record,) = records(pull(client))
    assert "TIMER_DELAY_SEC" not in props.decode(record.properties)


def test_a_batch_cannot_be_delayed(broker):
    """The broker refuses delayed batches; Java's `MessageBatch.generateFromList` refuses levels.

    An Apache broker reads only the properties of the batch as a whole
    (`HookUtils.handleScheduleMessage`): messages with a delay of their own are delivered at once.
    """
    client = with_topic(broker)
    plain = BatchMessage(0, b"one", b"")
    end = broker.node.store.offset_max
    due_ms = broker.clock.wall_ms + 60_000
    cases = []
    for name, value in (("DELAY", 3), ("TIMER_DELAY_SEC", 60), ("TIMER_DELAY_MS", 60_000), ("TIMER_DELIVER_MS", due_ms)):
        cases.append((send_fields(m="true"), [plain, BatchMessage(0, b"two", props.encode({name: str(value)}))]))
        cases.append((send_fields(m="true", i=f"{name}\x01{value}\x02"), [plain]))
    for fields, messages in cases:
        answer = client.ask(RequestCode.SEND_BATCH_MESSAGE, fields, encode_batch(messages))
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert "one by one" in answer.remark
    assert broker.node.store.offset_max == end


def test_levels_do_not_wait_for_one_another(broker):
    client = with_topic(broker)
    for level in (3, 1, 2, 1):
        delayed(client, level, b"level %d" % level)
    broker.advance(1000)
    assert bodies(client) == [b"level 1", b"level 1"]
    broker.advance(4000)
    assert bodies(client, offset=2) == [b"level 2"]
    broker.advance(5000)
    assert bodies(client, offset=3) == [b"level 3"]


def test_a_waiting_pull_is_woken_by_the_delivery(broker):
    client = with_topic(broker)
    delayed(client, 1)
    fields = pull_fields(sysFlag="6", suspendTimeoutMillis="20000")
    opaque = client.tell(RequestCode.PULL_MESSAGE, fields)
    broker.advance(999)
    assert client.answer_to(opaque) is None
    broker.advance(1)
    assert [each.body for each in records(client.answer_to(opaque))] == [b"later"]


def test_thousands_that_are_due_come_in_bounded_turns(broker):
    client = with_topic(broker)
    count = 3000
    fields = send_fields(i=f"{UNIQ}DELAY\x011\x02")
    for first in range(0, count, 500):
        frames = [
            write_command(RequestCode.SEND_MESSAGE_V2, fields, b"%d" % i, opaque=10_000 + i)
            for i in range(first, first + 500)
        ]
        client.send(b"".join(frames))
    store = broker.node.store
    broker._move(broker.clock.mono_ms + 1000)
    ends = [0]
    while ends[-1] < count:
        broker.turn()
        ends.append(store.queue_range("T", 0).offset_max)
    steps = [after - before for before, after in pairwise(ends)]
    assert max(steps) <= MESSAGES_PER_TURN
    assert min(steps[:-1]) == MESSAGES_PER_TURN
    found = []
    while len(found) < count:
        found += bodies(client, offset=len(found))
    assert found == [b"%d" % i for i in range(count)], "in the order they were sent"


def test_an_idle_broker_does_nothing_for_delay_levels(broker):
    client = with_topic(broker)
    delayed(client, 1)
    broker.advance(20_000)
    ran = []
    broker.node.duties.watch = ran.append
    broker.advance(60_000)
    assert not [name for name in ran if name.startswith("delay")]


def test_a_clock_that_was_set_forward_is_noticed(broker):
    client = with_topic(broker)
    delayed(client, 18)
    broker.advance(5000)
    broker.clock.wall_ms += 2 * 3_600_000
    broker.advance(1000)
    assert bodies(client) == [b"later"]


def test_a_clock_that_was_set_back_delays_no_longer_than_the_level(broker):
    """A due time further away than the level's delay counts as now (`correctDeliverTimestamp`)."""
    client = with_topic(broker)
    delayed(client, 2)
    broker.clock.wall_ms -= 3_600_000
    broker.advance(1000)
    assert bodies(client) == [b"later"]


# --- progress ---------------------------------------------------------------------


def test_a_clean_restart_delivers_nothing_twice_and_loses_nothing(make):
    broker = make()
    client = with_topic(broker)
    delayed(client, 1, b"before")
    delayed(client, 2, b"after")
    broker.advance(1500)
    stop(broker)
    broker = opened_again(broker)
    client = broker.connect()
    broker.advance(10_000)
    assert bodies(client) == [b"before", b"after"]


@pytest.mark.parametrize("mode", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_after_a_kill_what_was_not_saved_comes_again(make, mode):
    broker = make(f"flushDiskType={mode}")
    client = with_topic(broker)
    delayed(client, 1, b"saved")
    broker.advance(11_500)
    assert saved(broker).offset_table == {1: 1}
    delayed(client, 1, b"not saved")
    delayed(client, 2, b"not due")
    broker.advance(1500)
    assert bodies(client) == [b"saved", b"not saved"]
    broker = opened_again(broker, f"flushDiskType={mode}")
    client = broker.connect()
    assert bodies(client) == [b"saved", b"not saved", b"not saved"]
    broker.advance(10_000)
    assert bodies(client) == [b"saved", b"not saved", b"not saved", b"not due"]


def test_the_file_has_apaches_form(make):
    broker = make("delayOffsetUpdateVersionStep=2")
    client = with_topic(broker)
    for _ in range(5):
        delayed(client, 1)
    broker.advance(20_000)
    text = bytes(broker.disk.files["config/delayOffset.json"]).decode()
    assert text.startswith('{\n\t"dataVersion":{')
    assert saved(broker).offset_table == {1: 5}
    assert saved(broker).data_version.counter == 2, "a step each two deliveries"
    answer = client.ask(RequestCode.GET_ALL_DELAY_OFFSET)
    assert DelayOffsetTable.decode(answer.body) == saved(broker)
    facts = client.ask(RequestCode.GET_BROKER_RUNTIME_INFO).json["table"]
    assert facts["scheduleMessageOffset_1"] == "5,5"


def test_progress_is_saved_only_over_what_is_durable(make):
    """Otherwise a power cut would lose the delivered copy, and the saved progress the original."""
    broker = make()
    client = with_topic(broker)
    delayed(client, 1)
    synced = []
    store = broker.node.store
    sync, store.sync = store.sync, lambda offset, then: synced.append((offset, then))
    broker.advance(12_000)
    assert bodies(client) == [b"later"]
    assert synced[0][0] == store.offset_written
    assert "config/delayOffset.json" not in broker.disk.files
    store.sync = sync
    synced[0][1](True)
    broker.finish_disk()
    assert saved(broker).offset_table == {1: 1}


def test_in_sync_flush_progress_waits_for_the_disk(make):
    broker = make("flushDiskType=SYNC_FLUSH")
    client = with_topic(broker)
    delayed(client, 1)
    broker.disk.held = True
    broker.advance(1000)
    assert bodies(client) == [b"later"], "readers do not wait"
    assert broker.node.view.delay.offsets.by_level == {}
    broker.disk.held = False
    broker.finish_disk()
    assert broker.node.view.delay.offsets.by_level == {1: 1}


def test_puts_under_way_are_bounded(make):
    broker = make("flushDiskType=SYNC_FLUSH", "scheduleAsyncDeliverMaxPendingLimit=3")
    client = with_topic(broker)
    for _ in range(8):
        delayed(client, 1)
    broker.disk.held = True
    broker.advance(2000)
    assert len(bodies(client)) == 3
    broker.disk.held = False
    broker.advance(1)
    assert len(bodies(client)) == 8
    assert broker.node.view.delay.offsets.by_level == {1: 8}


def test_a_put_that_fails_is_tried_until_it_succeeds(make):
    broker = make()
    client = with_topic(broker)
    for number in range(3):
        delayed(client, 1, b"%d" % number)
    broker.disk.write_error = OSError(errno.ENOSPC, "No space left on device")
    broker.advance(5000)
    assert broker.node.view.delay.offsets.by_level == {}
    broker.disk.write_error = None
    broker.advance(2000)
    assert bodies(client) == [b"0", b"1", b"2"], "each once, in order"
    assert broker.node.view.delay.offsets.by_level == {1: 3}
    assert broker.log.events().count("delayed-message-not-stored") == 1


def test_a_level_that_cannot_be_stored_does_not_hold_others_up(broker):
    client = with_topic(broker)
    delayed(client, 1, b"big" * 1000)
    delayed(client, 2, b"small")
    size_max = broker.node.store.log.body_size_max
    broker.node.store.log.body_size_max = 100
    broker.advance(6000)
    assert bodies(client) == [b"small"]
    broker.node.store.log.body_size_max = size_max
    broker.advance(60_000)
    assert bodies(client) == [b"small", b"big" * 1000]


def test_a_record_that_cannot_be_read_is_passed_over_and_told(broker):
    client = with_topic(broker)
    for number in range(3):
        delayed(client, 1, b"message %d" % number)
    at = bytes(broker.disk.files["/s/commitlog/00000000000000000000"]).find(b"message 1")
    broker.disk.files["/s/commitlog/00000000000000000000"][at] ^= 1
    broker.advance(1000)
    assert bodies(client) == [b"message 0", b"message 2"]
    assert "delayed-message-dropped" in broker.log.events("error")
    assert broker.node.view.delay.offsets.by_level == {1: 3}


@pytest.mark.parametrize("text", ["HALF", "SCHEDULE", "NOWHERE"])
def test_a_record_that_belongs_nowhere_is_dropped(broker, text):
    """Apache logs: "[BUG] the real topic of schedule msg is …, discard the msg"."""
    from rmqkit.broker.special.delay.rewrite import postponed
    from rmqkit.testing.store_world import put

    topic = {"HALF": "RMQ_SYS_TRANS_HALF_TOPIC", "SCHEDULE": SCHEDULE, "NOWHERE": "T"}[text]
    made = postponed(put(topic, body=b"x"), 1, (1000,), broker.clock.wall_ms)
    if text == "NOWHERE":
        made = made._replace(properties=props.remove(made.properties, b"REAL_TOPIC"))
    client = with_topic(broker)
    broker.turn(lambda: broker.node.store.append(made))
    delayed(client, 1)
    broker.advance(1000)
    assert bodies(client) == [b"later"]
    assert broker.node.store.queue_range(topic, 0).offset_max == {"HALF": 0, "SCHEDULE": 2, "NOWHERE": 1}[text]


@pytest.mark.parametrize(("offset", "again"), [(7, 0), (-3, 2)])
def test_a_saved_offset_out_of_range_is_corrected(make, offset, again):
    broker = make()
    client = with_topic(broker)
    delayed(client, 1, b"a")
    delayed(client, 1, b"b")
    broker.advance(15_000)
    stop(broker)
    table = {"dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 1}, "offsetTable": {"1": offset}}
    broker.disk.files["config/delayOffset.json"] = bytearray(json.dumps(table).encode())
    broker = opened_again(broker)
    client = broker.connect()
    broker.advance(1000)
    assert "delay-offset-corrected" in broker.log.events("warning")
    assert broker.node.view.delay.offsets.by_level == {1: 2}
    assert len(bodies(client)) == 2 + again
    delayed(client, 1, b"c")
    broker.advance(1000)
    assert bodies(client)[-1] == b"c"


def test_a_file_that_apache_wrote_is_read(make):
    broker = make()
    client = with_topic(broker)
    delayed(client, 1, b"a")
    delayed(client, 1, b"b")
    stop(broker)
    broker.disk.files["config/delayOffset.json"] = bytearray(
        b'{\n\t"dataVersion":{\n\t\t"counter":3,\n\t\t"stateVersion":0,\n\t\t"timestamp":1700000000000\n\t},\n'
        b'\t"offsetTable":{1:1\n\t}\n}'
    )
    broker = opened_again(broker)
    client = broker.connect()
    broker.advance(1000)
    assert bodies(client) == [b"b"]
    assert broker.node.view.delay.offsets.version.counter == 3


def test_switched_off_nothing_is_delivered_and_on_it_goes_on(broker):
    """An acting master switches delivery on; when the master returns, the slave switches it off."""
    client = with_topic(broker)
    delayed(client, 1, b"a")
    broker.turn(broker.node.view.delay.stop)
    assert not broker.node.view.delay.is_on
    broker.advance(5000)
    assert bodies(client) == []
    delayed(client, 1, b"b")
    broker.turn(lambda: broker.node.view.delay.start(broker.node.special.destination))
    broker.advance(1000)
    assert bodies(client) == [b"a", b"b"]
    assert broker.node.view.delay.offsets.by_level == {1: 2}


def test_delays_longer_than_messages_are_kept_are_told(make):
    broker = make("messageDelayLevel=1s 4d", "fileReservedTime=72")
    assert "delay-longer-than-kept" in broker.log.events("warning")


def test_a_delayed_message_is_counted_in_its_topic_when_it_is_delivered(broker):
    """Until its delivery it counts in SCHEDULE_TOPIC_XXXX.

    Source: `SendMessageProcessor.handlePutMessageResult`.
    """
    client = with_topic(broker)
    delayed(client, 1, b"once")
    puts = broker.node.statistics.puts.table
    assert {topic: count.messages for topic, count in puts.items()} == {"SCHEDULE_TOPIC_XXXX": 1}
    broker.advance(1000)
    assert {topic: count.messages for topic, count in puts.items()} == {"SCHEDULE_TOPIC_XXXX": 1, "T": 1}


def test_a_smaller_message_size_lets_what_waits_arrive(broker):
    client = with_topic(broker)
    delayed(client, 1, b"big" * 1000)
    delayed(client, 1, b"small")
    assert client.ask(RequestCode.UPDATE_BROKER_CONFIG, {}, b"maxMessageSize=1000").code == 0
    assert send(client, body=b"big" * 1000).code == ResponseCode.MESSAGE_ILLEGAL
    broker.advance(1000)
    assert bodies(client) == [b"big" * 1000, b"small"]


def test_a_level_whose_only_message_was_not_written_is_not_looked_at_again(broker):
    client = with_topic(broker)
    broker.disk.write_error = OSError(errno.ENOSPC, "No space left on device")
    fields = send_fields(i=f"{UNIQ}DELAY\x011\x02")
    assert client.ask(RequestCode.SEND_MESSAGE_V2, fields, b"lost").code == ResponseCode.SERVICE_NOT_AVAILABLE
    broker.disk.write_error = None
    broker.advance(5000)
    assert broker.node.view.delay.levels[1].due_ms is None
    delayed(client, 1, b"next")
    broker.advance(1000)
    assert bodies(client) == [b"next"]
