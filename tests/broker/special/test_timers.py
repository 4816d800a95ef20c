"""Timer messages on one broker in virtual time: accepted, indexed, delivered, recalled.

After each kind of stop, too.
"""

import base64
import json
import struct

import pytest

from rmqkit.broker.roles.role import CLIENT_CODES
from rmqkit.broker.special.timer import delivery, index
from rmqkit.broker.special.timer.backlog import BACKLOG_MAX, BACKLOG_MAX_MS, QUIET_MS, SOON_MS, TimerBacklog
from rmqkit.broker.special.timer.delivery import MESSAGES_PER_TURN
from rmqkit.broker.special.timer.duty import TimerDuty
from rmqkit.broker.special.timer.index import FOLLOWING
from rmqkit.broker.special.timer.late import LateTimer
from rmqkit.broker.special.timer.progress import LATE_MAX, TimerProgress
from rmqkit.broker.special.timer.slot_choice import window_slots
from rmqkit.errors import RemoteProtocolError
from rmqkit.store.contract import Put, PutResult, PutStatus
from rmqkit.store.timer_log import UNIT_SIZE
from rmqkit.testing import SimBroker
from rmqkit.testing.brokers import NAME
from rmqkit.testing.special_duties import Recorder
from rmqkit.wire import properties as props
from rmqkit.wire.bodies import DataVersion
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.msgid import RecallHandle
from rmqkit.wire.record import decode_record
from rmqkit.wire.schemas.send import SendMessageRequestV2
from rmqkit.wire.topic_names import TIMER_TOPIC

HOST = bytes(8)


class Lab(SimBroker):
    """A broker with the topic T."""

    def __init__(self, *settings: str) -> None:
        super().__init__("recallMessageEnable=true", "remoteConfigUpdateEnable=true", *settings, entry_points=False)
        self.create_topic("T", 4)

    @property
    def duty(self) -> TimerDuty:
        return self.node.special.find(TimerDuty)

    def try_send(self, body=b"x", queue_id=0, **properties):
        request = SendMessageRequestV2(
            producer_group="test", topic="T", default_topic="TBW102", default_topic_queue_nums=4, queue_id=queue_id,
            sys_flag=0, born_timestamp=self.now_ms, flag=0, properties=props.encode(properties).decode(),
        )  # fmt: skip
        return self.ask(RequestCode.SEND_MESSAGE_V2, request, body)

    def after(self, delay_ms, body=b"x", **more):
        reply = self.try_send(body, TIMER_DELIVER_MS=str(self.now_ms + delay_ms), **more)
        assert reply.is_ok, reply.remark
        return reply

    def records(self, topic="T", queue_id=0):
        store = self.node.store
        end = store.queue_range(topic, queue_id).offset_max
        found = []
        while len(found) < end:
            entries = store.entries(topic, queue_id, len(found), end)
            found += [decode_record(store.read_log(each.phy_offset, each.size), check_crc=True) for each in entries]
        return found

    def bodies(self, topic="T", queue_id=0):
        return [each.body for each in self.records(topic, queue_id)]

    def recall(self, handle, topic="T"):
        return self.ask(RequestCode.RECALL_MESSAGE, {"topic": topic, "recallHandle": handle, "producerGroup": "g"})

    def followed(self):
        assert self.world.run_until(lambda: self.duty.index.state is FOLLOWING, 60_000)

    def files(self):
        """The disk of the stopped broker, for changes from outside."""
        disk = self.world.disk(NAME)
        disk.is_dead = False
        return disk

    def change(self, setting):
        reply = self.ask(RequestCode.UPDATE_BROKER_CONFIG, body=f"{setting}\n".encode())
        assert reply.is_ok, reply.remark


@pytest.fixture
def lab() -> Lab:
    return Lab()


# --- accepting


@pytest.mark.parametrize(
    ("properties", "delay_ms"),
    [
        ({"TIMER_DELAY_SEC": "5"}, 5_000),
        ({"TIMER_DELAY_MS": "4200"}, 4_200),
        ({"TIMER_DELIVER_MS": "+6100"}, 6_100),
        ({"TIMER_DELAY_SEC": "3", "TIMER_DELAY_MS": "99000", "TIMER_DELIVER_MS": "1"}, 3_000),
        ({"TIMER_DELAY_MS": "3000", "TIMER_DELIVER_MS": "1"}, 3_000),
    ],
)
def test_a_timer_waits_in_its_topic_and_is_never_early(lab, properties, delay_ms):
    if properties == {"TIMER_DELIVER_MS": "+6100"}:
        properties = {"TIMER_DELIVER_MS": f"+{lab.now_ms + 6_100}"}
    sent_ms = lab.now_ms
    assert lab.try_send(b"late", **properties).is_ok
    (waiting,) = lab.records(TIMER_TOPIC)
    stored = props.decode(waiting.properties)
    assert (stored["REAL_TOPIC"], stored["REAL_QID"]) == ("T", "0")
    assert int(stored["TIMER_OUT_MS"]) % 1000 == 0
    assert sent_ms + delay_ms - 1000 <= int(stored["TIMER_OUT_MS"]) < sent_ms + delay_ms + 20
    lab.advance(sent_ms + delay_ms - lab.now_ms - 1)
    assert lab.bodies() == []
    lab.advance(1_100)
    (record,) = lab.records()
    assert record.body == b"late"
    assert record.store_ms >= sent_ms + delay_ms
    delivered = props.decode(record.properties)
    assert stored.items() <= delivered.items(), "Apache keeps the properties of the waiting message"
    assert delivered.keys() - stored.keys() == {"TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS"}


@pytest.mark.parametrize(
    ("more", "is_waiting"),
    [
        ({}, True),
        ({"TAGS": "A", "K": "v"}, True),
        ({"TAGS": "x" * 200}, True),
        ({"MSG_REGION": "forged"}, True),
        ({"REAL_TOPIC": "forged", "REAL_QID": "9"}, True),
        ({"TIMER_OUT_MS": "1"}, False),
    ],
)
def test_the_order_of_the_properties_makes_no_difference(lab, more, is_waiting):
    """Java's hash map returns the due time before the unique id, a form with a path of its own."""
    due = {"TIMER_DELIVER_MS": str(lab.now_ms + 4_000)}
    for number, (first, then) in enumerate([(due, more), ({}, {**more, **due})]):
        reply = lab.try_send(**first, UNIQ_KEY=f"{number:032X}", WAIT="true", **then)
        assert reply.is_ok, reply.remark
        assert ("recallHandle" in reply.ext) == is_waiting
    java, other = (props.decode(each.properties) for each in lab.records(TIMER_TOPIC if is_waiting else "T"))
    assert java | {"UNIQ_KEY": ""} == other | {"UNIQ_KEY": ""}
    assert not is_waiting or (java["REAL_TOPIC"], java["REAL_QID"]) == ("T", "0")
    for value in ("1 ", "-", "9" * 20, str(lab.now_ms + 10**12)):
        codes = {
            lab.try_send(**pairs).code
            for pairs in (
                {"TIMER_DELIVER_MS": value, "UNIQ_KEY": "A", "WAIT": "true"},
                {"UNIQ_KEY": "A", "WAIT": "true", "TIMER_DELIVER_MS": value},
            )
        }
        assert codes == {ResponseCode.MESSAGE_ILLEGAL}


def test_a_turn_whose_timer_log_cannot_be_written_is_indexed_later(lab):
    lab.after(3_600_000)
    disk, index = lab.world.disk(NAME), lab.duty.index
    lab.advance(500)
    before = index.log.end, index.next, index.wheel.count, index.wheel.units, dict(index.by_topic)
    disk.fail("write", "timerlog", times=1)
    lab.after(3_600_000, UNIQ_KEY="1")
    lab.after(7_200_000, UNIQ_KEY="2")
    lab.advance(500)
    assert (index.log.end, index.next, index.wheel.count, index.wheel.units, dict(index.by_topic)) == before
    assert sum(index.indexed.values()) == 1
    lab.advance(2_000)
    assert (index.next, index.wheel.count, index.wheel.units, list(index.by_topic.values())) == (3, 3, 3, [3])
    assert sum(index.indexed.values()) == 3


@pytest.mark.parametrize("offset_ms", [-1, 0, 1, 999])
def test_an_exact_multiple_loses_one_unit(lab, offset_ms):
    """`HookUtils.transformTimerMessage`: rounded down, an exact multiple by one unit."""
    exact_ms = lab.now_ms // 1000 * 1000 + 8_000
    assert lab.try_send(TIMER_DELIVER_MS=str(exact_ms + offset_ms)).is_ok
    out_ms = int(props.decode(lab.records(TIMER_TOPIC)[0].properties)["TIMER_OUT_MS"])
    assert out_ms == (exact_ms - 1000 if offset_ms <= 0 else exact_ms)


def test_a_time_that_has_passed_makes_a_plain_message(lab):
    reply = lab.try_send(b"now", TIMER_DELIVER_MS=str(lab.now_ms - 1))
    assert reply.is_ok
    assert "recallHandle" not in reply.ext
    assert lab.bodies() == [b"now"]
    assert lab.try_send(b"negative", TIMER_DELAY_SEC="-5").is_ok
    assert lab.bodies() == [b"now", b"negative"]


@pytest.mark.parametrize(
    "properties",
    [
        {"TIMER_DELAY_SEC": "259201"},
        {"TIMER_DELIVER_MS": "soon"},
        {"TIMER_DELAY_MS": "1.5"},
        {"TIMER_DELAY_MS": "9" * 30},
        {"TIMER_DELAY_SEC": "٥"},
        {"TIMER_DELAY_SEC": " 5"},
        {"TIMER_DELAY_MS": "0x10"},
        {"TIMER_DELAY_MS": "--1"},
        {"TIMER_DELAY_MS": str(2**63 - 1)},
        {"TIMER_DELAY_MS": str(-(2**63) - 1)},
        {"TIMER_DELIVER_MS": "9223372036854775807"},
        {"TIMER_DELIVER_MS": "1", "TIMER_DEL_UNIQKEY": "K"},
    ],
)
def test_bad_times_are_refused_as_upstream_does(lab, properties):
    reply = lab.try_send(**properties)
    assert reply.code == ResponseCode.MESSAGE_ILLEGAL
    assert "the max delay 259200000ms" in reply.remark
    assert lab.records(TIMER_TOPIC) == []
    assert lab.bodies() == []


def test_without_the_wheel_timers_are_refused():
    lab = Lab("timerWheelEnable=false")
    reply = lab.try_send(TIMER_DELAY_SEC="5")
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert reply.remark == "accurate timer message is not enabled, timerWheelEnable is false"
    assert lab.try_send(b"plain").is_ok
    assert lab.ask(RequestCode.GET_TIMER_CHECK_POINT).body == bytes(56)


def test_a_delay_level_takes_precedence(lab):
    assert lab.try_send(DELAY="1", TIMER_DELAY_SEC="60").is_ok
    lab.advance(2_500)
    (record,) = lab.records()
    assert "TIMER_DELAY_SEC" not in props.decode(record.properties)


def test_a_delivered_message_is_not_delayed_again(lab):
    """TIMER_OUT_MS tells a broker that an escaped message has waited already."""
    assert lab.try_send(b"again", TIMER_DELAY_SEC="60", TIMER_OUT_MS="1").is_ok
    assert lab.bodies() == [b"again"]


def test_a_crowded_slot_refuses():
    lab = Lab("timerCongestNumEachSlot=3")
    at = str(lab.now_ms + 60_000)
    for _ in range(4):
        assert lab.try_send(TIMER_DELIVER_MS=at).is_ok
        lab.advance(10)
    reply = lab.try_send(TIMER_DELIVER_MS=at)
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert "flow control" in reply.remark
    assert lab.try_send(TIMER_DELIVER_MS=str(lab.now_ms + 90_000)).is_ok


# --- delivering


def test_a_slot_keeps_the_order_and_slots_come_one_after_the_other(lab):
    for number in range(600):
        lab.after(9_000 - 1_000 * (number % 3), b"%d" % number)
    lab.advance(15_000)
    numbers = [int(body) for body in lab.bodies()]
    assert sorted(numbers) == list(range(600))
    for rest in range(3):
        of_slot = [number for number in numbers if number % 3 == rest]
        assert of_slot == sorted(of_slot)


MIXED = (
    {},
    {"TAGS": "A"},
    {"KEYS": "k1 k2", "OWN": "v"},
    {"REAL_TOPIC": "of a user"},
    {"TIMER_ENQUEUE_MS": "5"},
    {"__CRC32#": "1234567890"},
)


def mixed(lab):
    """Send timers of many forms; return the numbers of their bodies."""
    for number in range(120):
        lab.after(4_000 + 1_000 * (number % 3), b"%d" % number, queue_id=number % 4, **MIXED[number % 7 % len(MIXED)])
    handle = lab.after(5_000, b"gone", UNIQ_KEY="K1").ext["recallHandle"]
    assert lab.recall(handle).is_ok
    return range(120)


def test_timers_that_are_read_without_a_decoder_are_indexed_and_delivered_the_same(monkeypatch):
    """Byte for byte: the timer log, and the records of the topic."""
    found = []
    for is_plain in (True, False):
        lab = Lab()
        if not is_plain:
            monkeypatch.setattr(index, "plain_waits", lambda store, entries: [None] * len(entries))
            monkeypatch.setattr(delivery, "due_timers", lambda *arguments: None)
        numbers = mixed(lab)
        lab.advance(9_000)
        stored = [lab.records("T", queue_id) for queue_id in range(4)]
        assert sorted(int(each.body) for records in stored for each in records) == list(numbers)
        parts = [[(each.body, each.properties, each.sys_flag, each.born_ms) for each in records] for records in stored]
        disk = lab.world.disk(NAME)
        end = lab.duty.index.log.end
        found.append((parts, disk.read(f"timerlog/{0:020d}", 0, end), lab.duty.index.by_topic))
    assert found[0] == found[1]


def test_plain_timers_are_put_together(lab, monkeypatch):
    single = []
    put_next = lab.duty.delivery._put_next
    monkeypatch.setattr(lab.duty.delivery, "_put_next", lambda *arguments: single.append(1) or put_next(*arguments))
    for number in range(50):
        lab.after(3_000, b"%d" % number)
    lab.advance(6_000)
    assert (len(lab.bodies()), single) == (50, [])


@pytest.mark.parametrize("is_sync", [False, True])
def test_timers_that_were_put_together_and_not_written_are_put_again(is_sync):
    lab = Lab("flushDiskType=SYNC_FLUSH") if is_sync else Lab()
    for number in range(30):
        lab.after(6_000, b"%d" % number)
    assert lab.bodies() == []
    lab.world.disk(NAME).fail("write", lab.node.config.paths.store_path_commit_log)
    lab.advance(12_000)
    assert [int(body) for body in lab.bodies()] == list(range(30)), "each once, in order"
    assert lab.log_lines("timer-not-stored")
    assert not lab.duty.delivery.late
    assert lab.duty.due_count() == 0


def test_a_timer_that_becomes_late_while_it_is_put_is_put_once():
    lab = Lab("flushDiskType=SYNC_FLUSH")
    for number in range(3):
        lab.after(3_000, b"%d" % number)
    lab.world.process(NAME).disk.sync_us = (2_000_000, 2_000_000)
    delivery = lab.duty.delivery
    while not delivery.in_flight:
        lab.advance(100)
    offset = min(delivery.in_flight)
    entry = next(iter(lab.node.store.entries(TIMER_TOPIC, 0, offset, 1)))
    delivery.late.add(LateTimer(offset, entry.phy_offset, entry.size, lab.now_ms // 1000 * 1000 - 1_000, is_roll=False))
    lab.advance(6_000)
    assert not delivery.in_flight
    assert not delivery.late
    assert not lab.log_lines("timer-dropped")
    assert sorted(lab.bodies()) == [b"0", b"1", b"2"]


def test_a_refused_timer_holds_up_no_other_one(lab):
    """The topic of a timer may be illegal by now; the others of its slot are put."""
    for number in range(9):
        lab.after(3_000, b"%d" % number)
    append, append_run = lab.node.store.append, lab.node.store.append_run

    def refuse(put):
        is_bad = put.topic == "T" and put.body == b"4"
        return PutResult(PutStatus.MESSAGE_ILLEGAL) if is_bad else append(put)

    def refuse_of_run(run):
        bodies = list(run.bodies)
        return append_run(run.part(0, bodies.index(b"4")) if b"4" in bodies else run)

    lab.node.store.append, lab.node.store.append_run = refuse, refuse_of_run
    lab.advance(6_000)
    assert [int(body) for body in lab.bodies()] == [0, 1, 2, 3, 5, 6, 7, 8]
    assert lab.log_lines("timer-dropped")


# --- the backlog


def test_the_index_waits_while_timers_arrive_without_a_pause():
    backlog = TimerBacklog(1000)
    assert not backlog.may_wait(0, 0, 0), "there is none"
    assert backlog.add(100, 60_000)
    assert not backlog.add(105, 50_000)
    assert backlog.may_wait(106, 0, 2)
    assert not backlog.may_wait(105 + QUIET_MS, 0, 2), "no timer has arrived for a while"
    assert not backlog.may_wait(106, 0, BACKLOG_MAX)
    assert not backlog.may_wait(106, 51_000 - SOON_MS, 2), "the first of the slots comes near"
    assert backlog.may_wait(106, 50_999 - SOON_MS, 2)
    backlog.add(100 + BACKLOG_MAX_MS, 60_000)
    assert not backlog.may_wait(100 + BACKLOG_MAX_MS, 0, 3), "the first one waits for too long"
    backlog.clear()
    assert backlog.add(9_000, 60_000)


def test_timers_that_arrive_all_the_time_are_delivered_in_time(lab):
    due_ms = []
    for number in range(300):
        due_ms.append(lab.now_ms + 3_000)
        lab.after(3_000, b"%d" % number)
        lab.advance(5)
    lab.advance(5_000)
    found = {int(each.body): each.store_ms for each in lab.records()}
    assert sorted(found) == list(range(300))
    assert all(due_ms[number] <= store_ms <= due_ms[number] + 1_100 for number, store_ms in found.items())


def test_a_burst_is_delivered_in_bounded_turns(lab):
    at = lab.now_ms // 1000 * 1000 + 3_000
    timers, count = lab.duty, 5_000
    put = Put("T", 0, 0, 0, 1, HOST, HOST, 0, 0, b"burst", b"", 0)
    for _ in range(count // 500):
        lab.world.call(NAME, lambda node: [timers.append(put, at - 1000) for _ in range(500)])
    sizes, run = [], timers.delivery.run

    def counted(to, now_ms):
        before = len(timers.delivery.in_flight)
        has_more = run(to, now_ms)
        sizes.append(len(timers.delivery.in_flight) - before)
        return has_more

    timers.delivery.run = counted
    lab.advance(at - lab.now_ms + 3_000)
    assert sum(sizes) == count
    assert max(sizes) == MESSAGES_PER_TURN
    assert len(lab.bodies()) == count
    assert timers.index.wheel.units == 0
    assert timers.due_count() == 0


def test_a_record_that_is_damaged_is_left_out(lab):
    lab.after(3_000, b"first")
    lab.after(3_000, b"second")
    store = lab.node.store
    (first, _) = store.entries(TIMER_TOPIC, 0, 0, 2)
    lab.advance(100)
    disk = lab.world.disk(NAME)
    data = disk.read("commitlog/00000000000000000000", first.phy_offset, first.size).replace(b"first", b"f1rst")
    disk.write("commitlog/00000000000000000000", first.phy_offset, [data])
    lab.advance(5_000)
    assert lab.bodies() == [b"second"]
    assert lab.log_lines("timer-dropped")


def test_a_clock_that_is_set_back_delivers_nothing_early(lab):
    lab.advance(5_000)
    slot_ms = lab.now_ms // 1000 * 1000 + 4_000
    lab.world.call(NAME, lambda node: setattr(node.special.find(TimerDuty).index.wheel, "first", slot_ms // 1000 + 50))
    lab.try_send(b"x", TIMER_DELIVER_MS=str(slot_ms + 500))
    lab.advance(slot_ms + 1_000 - lab.now_ms - 1)
    assert lab.bodies() == [], "its slot lies before the wheel, but its time has not come"
    lab.advance(1_200)
    assert lab.bodies() == [b"x"]


def test_dequeue_and_enqueue_can_be_stopped_live(lab):
    lab.change("timerStopDequeue=true")
    lab.after(2_000)
    lab.advance(6_000)
    assert lab.bodies() == []
    lab.change("timerStopDequeue=false")
    lab.advance(2_000)
    assert lab.bodies() == [b"x"]


# --- rolling


def test_a_timer_that_is_far_away_is_stored_again_on_its_way():
    lab = Lab("timerRollWindowSlot=10")
    sent_ms = lab.now_ms
    lab.after(25_000, b"far", UNIQ_KEY="far-1")
    lab.advance(24_000)
    waiting = lab.records(TIMER_TOPIC)
    assert len(waiting) > 1
    times = [props.decode(each.properties).get("TIMER_ROLL_TIMES", "0") for each in waiting]
    assert times == [str(number) for number in range(len(waiting))]
    assert len({props.decode(each.properties)["TIMER_OUT_MS"] for each in waiting}) == 1
    assert lab.bodies() == []
    lab.advance(3_000)
    (record,) = lab.records()
    assert sent_ms + 25_000 <= record.store_ms < sent_ms + 26_100


def test_the_window_follows_the_time_that_the_log_is_kept():
    lab = Lab("fileReservedTime=4")
    assert window_slots(lab.node.config) == 3 * 3600
    assert window_slots(Lab().node.config) == 172_800


def test_two_copies_that_were_rolled_are_delivered_once(lab):
    """A member that takes over may roll a timer which its master had rolled already."""
    out_ms = lab.now_ms // 1000 * 1000 + 3_000
    properties = props.encode(
        {"UNIQ_KEY": "K", "TIMER_OUT_MS": str(out_ms), "REAL_TOPIC": "T", "REAL_QID": "0", "TIMER_ROLL_TIMES": "1"}
    )
    put = Put(TIMER_TOPIC, 0, 0, 0, 1, HOST, HOST, 0, 0, b"once", properties, 0)
    lab.world.call(NAME, lambda node: [node.store.append(put), node.store.append(put)])
    lab.after(3_000, b"wakes the duty")
    lab.advance(6_000)
    assert lab.bodies().count(b"once") == 1


# --- recall


def test_a_recalled_message_is_not_delivered(lab):
    handle = lab.after(5_000, b"gone", UNIQ_KEY="K1").ext["recallHandle"]
    lab.after(5_000, b"stays", UNIQ_KEY="K2")
    decoded = RecallHandle.decode(handle)
    out_ms = int(props.decode(lab.records(TIMER_TOPIC)[0].properties)["TIMER_OUT_MS"])
    assert decoded == ("T", "broker-a", str(out_ms + 1), "K1")
    reply = lab.recall(handle)
    assert reply.is_ok, reply.remark
    assert reply.ext["msgId"] == "K1"
    marker = props.decode(lab.records(TIMER_TOPIC)[-1].properties)
    assert (marker["TIMER_DEL_UNIQKEY"], marker["TIMER_OUT_MS"], marker["TAGS"]) == ("K1", str(out_ms), "_RECALL_TAG_")
    lab.advance(8_000)
    assert lab.bodies() == [b"stays"]


def test_a_recall_with_the_topic_in_its_key_is_understood(lab):
    """The form of releases before 5.5, and of appendTopicForTimerDeleteKey."""
    handle = lab.after(5_000, b"gone", UNIQ_KEY="K1").ext["recallHandle"]
    lab.change("appendTopicForTimerDeleteKey=true")
    assert lab.recall(handle).is_ok
    assert props.decode(lab.records(TIMER_TOPIC)[-1].properties)["TIMER_DEL_UNIQKEY"] == "T+K1"
    lab.advance(8_000)
    assert lab.bodies() == []


def test_a_recall_of_a_rolled_message_meets_it_in_its_last_slot():
    lab = Lab("timerRollWindowSlot=10")
    handle = lab.after(25_000, b"gone", UNIQ_KEY="K1").ext["recallHandle"]
    lab.advance(3_000)
    assert lab.recall(handle).is_ok
    lab.advance(30_000)
    assert lab.bodies() == []


def handle_of(lab, **changes):
    fields = {"topic": "T", "broker_name": "broker-a", "time": str(lab.now_ms + 5_000), "unique_key": "K", **changes}
    return RecallHandle(**fields).encode()


def encoded(text):
    return base64.urlsafe_b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("make", "remark"),
    [
        (lambda lab: "no base64!", "recall handle is invalid"),
        (lambda lab: "", "recall handle is invalid"),
        (lambda lab: handle_of(lab)[:-6], "recall handle is invalid"),
        (lambda lab: "=" * 64, "recall handle is invalid"),
        (lambda lab: "A" * 100_000, "recall handle is invalid"),
        (lambda lab: encoded(f"v2 T broker-a {lab.now_ms + 5_000} K"), "recall handle is invalid"),
        (lambda lab: encoded("v1 T broker-a"), "recall handle is invalid"),
        (lambda lab: handle_of(lab, unique_key="K\x02TIMER_DELAY_SEC\x011"), "recall handle is invalid"),
        (lambda lab: handle_of(lab, topic="T\x00"), "recall failed, topic not match"),
        (lambda lab: handle_of(lab, time=f"-{lab.now_ms + 5_000}"), "recall failed, timestamp invalid"),
        (lambda lab: handle_of(lab, time="9" * 30), "recall failed, timestamp invalid"),
        (lambda lab: handle_of(lab, time="1.5e12"), "recall failed, timestamp invalid"),
        (lambda lab: handle_of(lab, unique_key=""), "recall handle is invalid"),
        (lambda lab: handle_of(lab, topic="U"), "recall failed, topic not match"),
        (lambda lab: handle_of(lab, broker_name="broker-b"), "recall failed, broker service not available"),
        (lambda lab: handle_of(lab, time="1"), "recall failed, timestamp invalid"),
        (lambda lab: handle_of(lab, time="later"), "recall failed, timestamp invalid"),
        (lambda lab: handle_of(lab, time=str(lab.now_ms + 259_200_999)), "recall failed, timestamp invalid"),
    ],
)
def test_handles_that_are_wrong_are_refused(lab, make, remark):
    reply = lab.recall(make(lab))
    assert reply.code == ResponseCode.ILLEGAL_OPERATION
    assert reply.remark == remark
    assert lab.records(TIMER_TOPIC) == []


def test_a_recall_is_refused_by_switch_topic_and_role(lab):
    assert lab.recall(handle_of(lab), topic="Nowhere").code == ResponseCode.TOPIC_NOT_EXIST
    lab.change("brokerPermission=4")
    assert lab.recall(handle_of(lab)).is_ok, "allowRecallWhenBrokerNotWriteable"
    lab.change("allowRecallWhenBrokerNotWriteable=false")
    assert lab.recall(handle_of(lab)).code == ResponseCode.SERVICE_NOT_AVAILABLE
    lab.change("recallMessageEnable=false")
    reply = lab.recall(handle_of(lab))
    assert (reply.code, reply.remark) == (ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden")
    slave = Lab.__new__(Lab)
    SimBroker.__init__(slave, "recallMessageEnable=true", "brokerRole=SLAVE", "brokerId=1", entry_points=False)
    assert slave.recall(handle_of(lab)).code == ResponseCode.SLAVE_NOT_AVAILABLE


def test_a_recall_waits_for_as_many_replicas_as_a_send():
    lab = Lab("brokerRole=SYNC_MASTER", "totalReplicas=3", "inSyncReplicas=2", "minInSyncReplicas=2")
    reply = lab.recall(handle_of(lab))
    assert (reply.code, reply.remark) == (ResponseCode.SYSTEM_ERROR, "recall failed, execute error")
    assert lab.records(TIMER_TOPIC) == []


def test_a_broker_that_is_isolated_refuses_recalls():
    assert RequestCode.RECALL_MESSAGE in CLIENT_CODES


# --- stops


@pytest.mark.parametrize("end", ["stop", "kill", "crash"])
def test_pending_timers_survive(end):
    lab = Lab("mappedFileSizeTimerLog=4096", "flushIntervalCommitLog=50")
    for number in range(200):
        lab.after(4_000 + 100 * number, b"%d" % number, UNIQ_KEY=f"K{number}")
    lab.advance(8_000)
    done = len(lab.bodies())
    assert 0 < done < 200
    getattr(lab, end)()
    lab.start()
    lab.advance(30_000)
    bodies = [int(body) for body in lab.bodies()]
    assert bodies == list(range(200)), "each once, none lost"


def test_a_kill_in_the_middle_of_a_slot_repeats_nothing(lab):
    at = lab.now_ms // 1000 * 1000 + 3_000
    for number in range(1_000):
        lab.world.call(
            NAME,
            lambda node, number=number: lab.duty.append(
                Put("T", 0, 0, 0, 1, HOST, HOST, 0, 0, b"%d" % number, props.encode({"UNIQ_KEY": f"K{number}"}), 0),
                at - 1_000,
            ),
        )
    lab.world.run_until(lambda: len(lab.bodies()) > 300, 5_000)
    assert 300 < len(lab.bodies()) < 1_000
    lab.kill()
    lab.start()
    lab.advance(5_000)
    assert [int(body) for body in lab.bodies()] == list(range(1_000))


def test_a_lost_timer_log_is_rebuilt_from_the_topic(lab):
    for number in range(20):
        lab.after(2_000 + 1_000 * number, b"%d" % number)
    lab.advance(6_000)
    lab.stop()
    lab.files().folder.remove("/sim/broker/timerlog")
    lab.start()
    lab.advance(30_000)
    assert [int(body) for body in lab.bodies()] == list(range(20))


def test_a_timer_log_with_garbage_at_its_end_is_cut(lab):
    for number in range(5):
        lab.after(10_000, b"%d" % number)
    lab.advance(1_000)
    lab.kill()
    disk = lab.files()
    path = "timerlog/00000000000000000000"
    disk.write(path, 5 * UNIT_SIZE + 3, [b"\xff" * 200])
    lab.start()
    lab.followed()
    assert lab.world.disk(NAME).read(path, 5 * UNIT_SIZE, 300) == bytes(300)
    lab.after(10_000, b"5")
    lab.advance(20_000)
    assert [int(body) for body in lab.bodies()] == list(range(6))


def test_files_are_apaches_byte_for_byte(lab):
    """Units of 52 bytes chain the slot backwards; the checkpoint has one page.

    Source: `TimerLog`, `TimerCheckpoint`.
    """
    at = lab.now_ms // 1000 * 1000 + 9_500
    for _ in range(2):
        lab.try_send(TIMER_DELIVER_MS=str(at))
    lab.try_send(TIMER_DELIVER_MS=str(at + 1_000))
    lab.advance(3_000)
    entries = lab.node.store.entries(TIMER_TOPIC, 0, 0, 3)
    data = lab.file("timerlog/00000000000000000000")
    assert len(data) == 104_857_600
    units = list(struct.iter_unpack(">iqiqiqiiq", data[: 4 * UNIT_SIZE]))
    assert units[3] == (0,) * 9
    assert [unit[:3] for unit in units[:3]] == [(52, -1, 1), (52, 0, 1), (52, -1, 1)]
    assert [unit[3] + unit[4] for unit in units[:3]] == [at - 500, at - 500, at + 500]
    assert [unit[5:] for unit in units[:3]] == [(each.phy_offset, each.size, 84, 0) for each in entries]
    page = lab.file("config/timercheck")
    assert len(page) == 4096
    read_ms, position, offset, master_offset, *_, counter = struct.unpack_from(">7q", page)
    assert read_ms % 1000 == 0
    assert (position, offset, master_offset) == (0, 3, 3)
    assert counter > 0


def test_units_that_apache_wrote_twice_are_delivered_once(lab):
    """After a kill Apache indexes the last second again: a slot's chain has some offsets twice."""
    at = lab.now_ms // 1000 * 1000 + 9_500
    for number in range(3):
        lab.try_send(b"%d" % number, TIMER_DELIVER_MS=str(at), UNIQ_KEY=f"K{number}")
    lab.advance(1_500)
    lab.kill()
    disk, path = lab.files(), "timerlog/00000000000000000000"
    units = list(struct.iter_unpack(">iqiqiqiiq", disk.read(path, 0, 3 * UNIT_SIZE)))
    for number, unit in enumerate(units[1:], 3):
        again = struct.pack(">iqiqiqiiq", unit[0], (number - 1) * UNIT_SIZE, *unit[2:])
        disk.write(path, number * UNIT_SIZE, [again])
    lab.start()
    lab.advance(15_000)
    assert [int(body) for body in lab.bodies()] == [0, 1, 2]


def test_timers_that_apache_has_delivered_are_not_delivered_again(lab):
    """As Apache leaves a store: read time and offsets in the checkpoint, units in the timer log."""
    for number in range(4):
        lab.after(2_000 + 2_000 * number, b"%d" % number)
    lab.advance(500)
    lab.stop()
    read_ms = lab.now_ms // 1000 * 1000 + 5_000
    page = struct.pack(">7q", read_ms, 4 * UNIT_SIZE, 4, 4, 0, read_ms, 9)
    lab.files().write("config/timercheck", 0, [page])
    lab.advance(5_000)
    lab.start()
    lab.advance(10_000)
    assert [int(body) for body in lab.bodies()] == [2, 3]


def test_bytes_written_by_apache_end_our_part_of_the_page():
    progress = TimerProgress(5_000, 9, 7, (3, 4), DataVersion(counter=2), 104)
    page = progress.pack()
    assert TimerProgress.decode(page) == progress
    assert struct.unpack_from(">7q", page)[2:4] == (3, 3), "Apache begins with the first late timer"
    changed = struct.pack(">q", 6_000) + page[8:]
    assert TimerProgress.decode(changed) == TimerProgress(6_000, 3, 0, (), DataVersion(counter=2), 104)
    many = progress._replace(late=tuple(range(10, 10 + LATE_MAX + 5)), offset=2_000)
    decoded = TimerProgress.decode(many.pack())
    assert (len(decoded.late), decoded.offset) == (LATE_MAX, 10 + LATE_MAX), "the rest counts as not delivered"


@pytest.mark.parametrize("data", [b"", bytes(31), b"\xff" * 56, b"{}"])
def test_a_checkpoint_that_cannot_be_read_is_refused(data):
    with pytest.raises(RemoteProtocolError):
        TimerProgress.decode(data)


def test_the_short_checkpoint_of_old_releases_is_read():
    assert TimerProgress.decode(struct.pack(">4q", 5_000, 52, 3, 4)) == TimerProgress(5_000, 3, log_position=52)


def test_a_timer_of_the_slot_under_way_stays_late_for_a_member_that_has_not_begun_the_slot():
    """`offset` counts for earlier slots only."""
    begun, not_begun = TimerProgress(5_000, 82, 55, (48, 52)), TimerProgress(5_000, 80)
    slots = {48: 5_000, 52: 4_000}
    for one, other in ((begun, not_begun), (not_begun, begun)):
        joined = one.joined(other, slots.get)
        assert (joined.slot_offset, joined.late) == (55, (48,)), "52 is of a slot that one of them has finished"
        assert one.joined(other, lambda offset: None).late == (48, 52)


@pytest.mark.long
def test_old_files_of_the_timer_log_go_with_the_commit_log():
    lab = Lab("mappedFileSizeTimerLog=4096", "mappedFileSizeCommitLog=65536", "fileReservedTime=0", "deleteWhen=0")
    for number in range(500):
        lab.after(1_500, b"%d" % number)
    lab.advance(10_000)
    assert len(lab.bodies()) == 500
    files = len(lab.world.disk(NAME).list("timerlog"))
    lab.advance(24 * 3_600_000)
    lab.after(1_500, b"last")
    lab.advance(40_000)
    assert len(lab.world.disk(NAME).list("timerlog")) < files


# --- failures of the destination


class Topics(Recorder):
    """A destination that refuses one topic."""

    def put(self, put, origin, then):
        self.answer = PutStatus.SERVICE_NOT_AVAILABLE if put.topic == "Bad" else PutStatus.PUT_OK
        super().put(put, origin, then)


@pytest.fixture
def slave():
    return SimBroker("brokerRole=SLAVE", "brokerId=1", entry_points=False)


def give(broker, topic, count, queue_id=0):
    timers = broker.node.special.find(TimerDuty)
    put = Put(topic, queue_id, 0, 0, 1, HOST, HOST, 0, 0, b"late", b"", 0)
    out_ms = broker.now_ms // 1000 * 1000
    broker.world.call(NAME, lambda node: [timers.append(put, out_ms) for _ in range(count)])
    return timers


@pytest.mark.parametrize("is_serial", [False, True])
def test_a_topic_that_takes_nothing_does_not_hold_up_the_others(slave, is_serial):
    to = Topics(is_serial=is_serial)
    timers = give(slave, "Bad", 3)
    slave.world.call(NAME, lambda node: timers.start(to))
    for _ in range(5):
        give(slave, "T", 4)
        slave.advance(1_000)
    slave.advance(2_000)
    assert len(to.stored) == 20
    assert timers.snapshot().late == (0, 1, 2)
    assert timers.due_count() == 3
    assert timers.facts()["timerLate"] == "3"
    page = timers.snapshot().encode()
    assert struct.unpack_from(">7q", page)[2] == 0, "an Apache member begins with the first late one"


def test_late_timers_survive_a_stop_and_the_rest_is_not_repeated(slave):
    to = Topics()
    timers = give(slave, "Bad", 2)
    slave.world.call(NAME, lambda node: timers.start(to))
    give(slave, "T", 4)
    slave.advance(4_000)
    slave.stop()
    slave.start()
    timers, again = slave.node.special.find(TimerDuty), Recorder()
    slave.world.call(NAME, lambda node: timers.start(again))
    slave.advance(3_000)
    assert sorted(again.stored) == ["TIMER:0", "TIMER:1"]
    assert timers.snapshot().late == ()


def test_a_put_that_ends_after_the_stop_leaves_a_peers_late_timers_late(slave):
    """The peer could not put timer 2. This broker has not tried, and gives it back to the peer."""
    to = Recorder(answer=None)
    timers = give(slave, "T", 2)
    slave.world.call(NAME, lambda node: timers.start(to))
    slave.advance(2_000)
    assert len(to.held) == 2
    slave.world.call(NAME, lambda node: timers.stop())
    give(slave, "T", 1)
    slave.advance(1_000)
    peer = TimerProgress(slave.now_ms // 1000 * 1000, 3, late=(1, 2))
    slave.world.call(NAME, lambda node: timers.merge(peer))
    slave.world.call(NAME, lambda node: to.end())
    slave.advance(1)
    assert timers.snapshot().late == (2,)


def test_slots_wait_while_too_many_timers_are_late(slave):
    to = Topics()
    timers = give(slave, "Bad", LATE_MAX + 50)
    slave.world.call(NAME, lambda node: timers.start(to))
    slave.advance(5_000)
    assert len(timers.delivery.late) <= LATE_MAX
    assert timers.due_count() == LATE_MAX + 50


# --- what it shows


def test_facts_and_counts(lab):
    for _ in range(3):
        lab.after(60_000)
    lab.advance(1_000)
    facts = json.loads(lab.ask(RequestCode.GET_BROKER_RUNTIME_INFO).body)["table"]
    assert facts["timerCongestNum"] == "3"
    assert facts["timerOffsetBehind"] == "0"
    assert float(facts["timerEnqueueTps"]) > 0
    assert float(facts["timerDequeueTps"]) == 0
    assert int(facts["timerReadBehind"]) <= 1
    counts = json.loads(lab.ask(RequestCode.GET_TIMER_METRICS).body)["timingCount"]
    assert counts == {"T": {"count": 3, "timeStamp": counts["T"]["timeStamp"]}}
    version = json.loads(lab.ask(RequestCode.GET_TIMER_METRICS).body)["dataVersion"]
    lab.advance(65_000)
    body = lab.ask(RequestCode.GET_TIMER_METRICS).body
    assert json.loads(body)["timingCount"] == {}
    assert json.loads(body)["dataVersion"]["counter"] > version["counter"], "or an Apache slave would not copy them"
    assert json.loads(lab.ask(RequestCode.GET_BROKER_RUNTIME_INFO).body)["table"]["timerCongestNum"] == "0"


def test_a_damaged_file_of_counts_does_not_stop_the_start(lab):
    lab.advance(3_000)
    lab.after(60_000)
    lab.advance(12_000)
    lab.stop()
    for name in ("config/timermetrics", "config/timermetrics.bak"):
        lab.files().write(name, 0, [b"\xff"])
    lab.start()
    (line,) = lab.log_lines("timer-counts-unreadable")
    assert line["error"].startswith("config/timermetrics.bak cannot be read (")
    lab.advance(1_000)
    assert json.loads(lab.ask(RequestCode.GET_TIMER_METRICS).body)["timingCount"]["T"]["count"] == 1
    lab.stop()
    assert json.loads(lab.file("config/timermetrics"))["timingCount"]["T"]["count"] == 1


def test_the_counts_are_in_the_file_of_apache(lab):
    lab.advance(3_000)
    lab.after(60_000)
    lab.advance(2_000)
    lab.after(60_000)
    lab.advance(12_000)
    saved = json.loads(lab.file("config/timermetrics"))
    assert saved["timingCount"] == {"T": {"count": 2, "timeStamp": saved["timingCount"]["T"]["timeStamp"]}}
    assert saved == json.loads(lab.ask(RequestCode.GET_TIMER_METRICS).body)
    lab.stop()
    lab.start()
    lab.after(60_000)
    lab.advance(1_000)
    body = json.loads(lab.ask(RequestCode.GET_TIMER_METRICS).body)
    assert body["timingCount"]["T"]["count"] == 3
    assert body["dataVersion"]["counter"] > saved["dataVersion"]["counter"]
