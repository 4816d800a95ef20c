"""Escape: an acting master puts due delayed messages and sends back on another group's master.

The group has lost its master. In most tests the test itself makes the slave act; in one the slave
notices the loss by itself.
"""

import pytest

from rmqkit.broker.roles import Online, Role
from rmqkit.broker.special.destinations import ESCAPES_MAX
from rmqkit.sim.cluster import SimCluster
from rmqkit.sim.world import World
from rmqkit.store.contract import Put, PutStatus
from rmqkit.testing.brokers import _Client
from rmqkit.wire import properties as props
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.record import decode_record
from rmqkit.wire.schemas.send import ConsumerSendMsgBackRequest, SendMessageRequestV2
from tests.broker.requests import UNIQ, send, with_topic

A0, A1, B0, B1 = "broker-a-0", "broker-a-1", "broker-b-0", "broker-b-1"
SCHEDULE = "SCHEDULE_TOPIC_XXXX"
CONTAINERS = [(A0, B1), (B0, A1)]


class Lab:
    def __init__(self, *, containers=(), strategy="auto", acting=False):
        self.world = World(1)
        settings = {"escapeStrategy": strategy, "flushDelayOffsetInterval": 1000}
        self.cluster = SimCluster(
            self.world, groups=2, replicas=2, acting=acting, fast=acting, containers=containers, settings=settings
        )
        self.world.add_node("client", lambda ports: _Client("client", ports), "10.0.2.99")
        self.cluster.ready()
        for name in (A0, B0):
            self.create(name, "T", 4)
        self.world.run_for(1500)

    def node(self, name):
        return self.cluster.broker(name)

    @property
    def acting(self):
        return self.node(A1)

    def create(self, name, topic, queues=1):
        self.world.call(name, lambda broker: broker.topics.create_system(topic, queues))

    def until(self, reached, limit_ms=20_000):
        assert self.world.run_until(reached, limit_ms), self.acting.view.facts()

    def ask(self, name, code, ext, body=b""):
        found = []
        address = self.node(name).view.address
        self.world.call(
            "client", lambda node: node.remoting.call(address, code, ext, body, timeout_ms=9000, then=found.append)
        )
        self.until(lambda: found)
        return found[0]

    def send(self, body, *, name=A0, topic="T", queue_id=0, level=0):
        properties = {"UNIQ_KEY": body.decode(), **({"DELAY": str(level)} if level else {})}
        request = SendMessageRequestV2(
            producer_group="p", topic=topic, default_topic="TBW102", default_topic_queue_nums=4, queue_id=queue_id,
            sys_flag=0, born_timestamp=1, flag=0, properties=props.encode(properties).decode(),
        )  # fmt: skip
        reply = self.ask(name, RequestCode.SEND_MESSAGE_V2, request, body)
        assert reply.code == 0, reply
        return reply

    def takeover(self):
        """Kill the master and make its slave act."""
        slave, master = self.node(A1), self.node(A0)
        self.until(lambda: slave.store.offset_written == master.store.offset_written)
        for name in self.cluster.together(A0):
            self.world.kill(name)
        self.act()

    def act(self, role=Role.ACTING, name=A1):
        self.world.call(name, lambda broker: broker.roles._change(role, Online.ONLINE, "told by the test"))
        self.world.run_for(1)

    def records(self, topic="T", name=B0):
        broker = self.node(name)
        found = []
        for queue in broker.store.queues():
            if queue.topic == topic:
                for offset in range(queue.offset_min, queue.offset_max):
                    (entry,) = broker.store.entries(topic, queue.queue_id, offset, 1)
                    found.append(decode_record(broker.store.read_log(entry.phy_offset, entry.size), check_crc=True))
        return sorted(found, key=lambda each: each.phy_offset)

    def bodies(self, topic="T", name=B0):
        return [bytes(each.body) for each in self.records(topic, name)]

    def send_back(self, record, name=A1, level=0, **more):
        request = ConsumerSendMsgBackRequest(offset=record.phy_offset, group="G", delay_level=level, **more)
        return self.ask(name, RequestCode.CONSUMER_SEND_MSG_BACK, request)


@pytest.fixture
def lab():
    return Lab()


def test_due_messages_are_put_on_the_other_master_once_in_order_and_never_early(lab):
    for number in range(20):
        lab.send(b"m%02d" % number, level=2, queue_id=number % 4)
    sent_ms = lab.world.now_ms
    lab.takeover()
    end = lab.acting.store.offset_max
    lab.world.run_for(4_900 - (lab.world.now_ms - sent_ms))
    assert lab.bodies() == []
    lab.world.run_for(1_000)
    assert lab.bodies() == [b"m%02d" % number for number in range(20)]
    lab.world.run_for(20_000)
    assert len(lab.bodies()) == 20, "once"
    assert lab.acting.store.offset_max == end, "nothing goes into its own log"
    assert lab.acting.view.delay.offsets.by_level[2] == 20
    marks = [props.decode(each.properties) for each in lab.records()]
    assert [each["ESCAPED_FROM"] for each in marks] == [f"broker-a:SCHEDULE:2:{number}" for number in range(20)]
    assert {each["ESCAPED_BY"] for each in marks} == {"broker-a:1"}
    facts = lab.acting.view.facts()
    assert (facts["escaped"], facts["escapeWaiting"], facts["escapeWhy"]) == ("20", "0", "")
    assert facts["escapedTo"] == '{"broker-b":20}'


def test_takeover_and_return():
    """Messages due while the master is away escape, later ones do not; no message arrives twice."""
    lab = Lab(acting=True)
    lab.send(b"soon", level=1)
    lab.send(b"meanwhile", level=2)
    lab.send(b"later", level=4)
    lab.until(lambda: lab.bodies(name=A0) == [b"soon"])
    lab.until(lambda: lab.acting.view.delay.offsets.by_level.get(1) == 1, 70_000)
    lab.world.kill(A0)
    lab.until(lambda: lab.bodies() == [b"meanwhile"])
    assert lab.acting.roles.is_acting
    lab.world.restart(A0)
    lab.until(lambda: lab.node(A0).roles.state.is_master)
    lab.until(lambda: lab.bodies(name=A0) == [b"soon", b"later"], 60_000)
    lab.world.run_for(10_000)
    assert not lab.acting.roles.is_acting
    assert (lab.bodies(), lab.bodies(name=A0)) == ([b"meanwhile"], [b"soon", b"later"])


def test_a_slave_that_does_not_act_delivers_nothing(lab):
    lab.send(b"one", level=1)
    lab.world.kill(A0)
    lab.world.run_for(10_000)
    assert lab.bodies() == []
    assert lab.acting.view.facts()["escapeWaiting"] == "0"
    lab.act()
    lab.until(lambda: lab.bodies() == [b"one"])


def test_it_begins_where_the_master_has_ended(lab):
    for number in range(5):
        lab.send(b"early%d" % number, level=1)
    lab.world.run_for(3_000)
    assert len(lab.bodies(name=A0)) == 5
    lab.send(b"late", level=1)
    lab.until(lambda: lab.acting.view.delay.offsets.by_level.get(1) == 5, 70_000)
    lab.takeover()
    lab.world.run_for(5_000)
    assert lab.bodies() == [b"late"]


def test_it_ends_at_once_with_the_role(lab):
    lab.send(b"one", level=1)
    lab.send(b"two", level=3)
    lab.takeover()
    lab.until(lambda: lab.bodies() == [b"one"])
    lab.act(Role.SLAVE)
    assert not lab.acting.view.delay.is_on
    lab.world.run_for(20_000)
    assert lab.bodies() == [b"one"]
    assert lab.acting.view.delay.offsets.by_level == {1: 1}, "the progress is what a master takes back"


def test_messages_that_cannot_escape_stay_due_and_the_reason_is_shown(lab):
    for number in range(3):
        lab.send(b"m%d" % number, level=1)
    lab.send(b"other level", level=3)
    lab.world.kill(B0)
    lab.takeover()
    lab.world.run_for(5_000)
    facts = lab.acting.view.facts()
    assert (facts["escaped"], facts["escapeWaiting"]) == ("0", "3")
    assert "no other group with topic T has a live master" in facts["escapeWhy"]
    assert 1 not in lab.acting.view.delay.offsets.by_level
    (line,) = lab.world.log(A1).events("delayed-message-not-stored")
    assert line.fields["level"] == 1
    assert line.fields["why"]
    lab.world.run_for(60_000)
    assert lab.acting.view.facts()["escapeWaiting"] == "4"
    lab.world.restart(B0)
    lab.until(lambda: len(lab.bodies()) == 4 if lab.node(B0).serving else False)
    assert sorted(lab.bodies()) == [b"m0", b"m1", b"m2", b"other level"]
    assert [each for each in lab.bodies() if each != b"other level"] == [b"m0", b"m1", b"m2"]
    lab.until(lambda: lab.acting.view.facts()["escapeWhy"] == "")


def test_a_lost_answer_is_a_message_that_comes_twice_and_none_is_lost(lab):
    """The target stores the message, but its response gets lost."""
    lab.send(b"one", level=1)
    lab.send(b"two", level=1)
    lab.takeover()
    put = lab.acting.escape.strategy.put
    lost = []

    def loses_an_answer(message, then):
        put(message, lambda status: lost.append(status) or then(PutStatus.UNKNOWN_ERROR) if not lost else then(status))

    lab.acting.escape.strategy.put = loses_an_answer
    lab.until(lambda: len(lab.bodies()) == 3)
    lab.world.run_for(5_000)
    assert lost == [PutStatus.PUT_OK]
    assert lab.bodies() == [b"one", b"one", b"two"]
    assert lab.acting.view.facts()["escapeUnknown"] == "1"


def test_a_target_that_stops_answering_costs_no_message(lab):
    for number in range(10):
        lab.send(b"m%d" % number, level=1)
    lab.takeover()
    lab.world.pause(B0)
    lab.world.run_for(8_000)
    assert lab.acting.view.facts()["escaped"] == "0"
    lab.world.resume(B0)
    lab.until(lambda: lab.acting.view.delay.offsets.by_level.get(1) == 10, 60_000)
    assert list(dict.fromkeys(lab.bodies())) == [b"m%d" % number for number in range(10)]
    assert len(lab.bodies()) <= 10 + int(lab.acting.view.facts()["escapeUnknown"])


def test_progress_is_saved_soon(lab):
    lab.send(b"one", level=1)
    lab.takeover()
    lab.until(lambda: lab.acting.view.facts()["escaped"] == "1")
    lab.world.run_for(1_500)
    lab.world.kill(A1)
    lab.world.restart(A1)
    lab.until(lambda: lab.acting.serving)
    lab.act()
    lab.world.run_for(5_000)
    assert lab.bodies() == [b"one"]


def test_what_arrives_without_an_append_of_its_own_is_found(lab):
    """A replicated record arrives like this."""
    lab.takeover()
    lab.world.run_for(1_000)
    assert lab.acting.view.delay.levels[1].offset == 0
    wall_ms = lab.acting.clock.wall_ms
    properties = props.encode({"REAL_TOPIC": "T", "REAL_QID": "0", "DELAY": "1"})
    put = Put(SCHEDULE, 0, 0, 0, 1, bytes(8), bytes(8), 0, 0, b"arrived", properties, wall_ms + 1000)
    lab.world.call(A1, lambda broker: broker.store.append(put))
    lab.world.run_for(900)
    assert lab.bodies() == []
    lab.until(lambda: lab.bodies() == [b"arrived"], 400)


def test_without_a_strategy_all_waits_for_the_master():
    lab = Lab(strategy="none")
    lab.send(b"one", level=1)
    lab.takeover()
    lab.world.run_for(10_000)
    facts = lab.acting.view.facts()
    assert (facts["escapeStrategy"], facts["escaped"], facts["escapeWaiting"]) == ("none", "0", "1")
    assert "escapeStrategy is none" in facts["escapeWhy"]
    assert lab.bodies() == []


@pytest.mark.parametrize("strategy", ["local", "auto"])
def test_a_master_in_the_same_process_takes_it_without_a_connection(strategy):
    lab = Lab(containers=CONTAINERS, strategy=strategy)
    for number in range(5):
        lab.send(b"m%d" % number, level=1)
    lab.takeover()
    lab.until(lambda: len(lab.bodies()) == 5)
    lab.world.run_for(5_000)
    assert lab.bodies() == [b"m%d" % number for number in range(5)]
    assert lab.node(B0).view.address not in lab.acting.remoting.links
    assert lab.acting.view.facts()["escapedTo"] == '{"broker-b":5}'


def test_the_master_in_the_same_process_may_not_take_it_and_another_does():
    """The master in the same process is out of service: its own role says so."""
    lab = Lab(containers=CONTAINERS)
    lab.send(b"one", level=1)
    lab.takeover()
    lab.world.call(B0, lambda broker: broker.roles._change(Role.MASTER, Online.ISOLATED, "told by the test"))
    lab.world.run_for(5_000)
    assert lab.acting.view.facts()["escaped"] == "0"
    lab.world.call(B0, lambda broker: broker.roles._change(Role.MASTER, Online.ONLINE, "told by the test"))
    lab.until(lambda: lab.bodies() == [b"one"])


@pytest.mark.parametrize("meanwhile_ms", [0, 1, 5])
def test_a_master_in_the_same_process_is_taken_out_of_it(meanwhile_ms):
    """A caller that waits for the stopped master gets an answer.

    The delayed message is put once the master is back.
    """
    lab = Lab(containers=CONTAINERS, strategy="local")
    lab.send(b"one", level=1)
    lab.takeover()
    answers = []
    put = Put("T", 0, 0, 0, 1, bytes(8), bytes(8), 0, 0, b"asked", b"", 0)
    lab.world.call(A1, lambda broker: broker.escape.put(put, "x", answers.append))
    lab.world.run_for(meanwhile_ms)
    lab.world.stop(B0)
    lab.until(lambda: not lab.world.is_alive(B0))
    lab.acting.view.neighbours = []
    lab.until(lambda: answers)
    lab.world.run_for(3_000)
    assert len(answers) == 1
    assert lab.acting.view.facts()["escapeWaiting"] == "1"
    lab.world.restart(B0)
    lab.until(lambda: lab.node(B0).serving and b"one" in lab.bodies())
    lab.world.run_for(1_000)
    assert (b"asked" in lab.bodies()) == (answers == [PutStatus.PUT_OK])
    assert lab.acting.escape.in_flight == 0


# --- sends back


@pytest.mark.parametrize("containers", [(), CONTAINERS], ids=["remote", "local"])
def test_a_message_sent_back_is_retried_by_way_of_the_other_master(containers):
    lab = Lab(containers=containers)
    for name in (A0, A1, B0):
        lab.world.call(name, lambda broker: broker.groups.get("G"))
    lab.create(B0, "%RETRY%G")
    lab.send(b"work")
    lab.takeover()
    lab.world.run_for(100)
    (record,) = lab.records(name=A1)
    end = lab.acting.store.offset_max
    assert lab.send_back(record).code == ResponseCode.SUCCESS
    lab.world.run_for(9_500)
    assert lab.bodies("%RETRY%G") == []
    lab.world.run_for(1_000)
    (again,) = lab.records("%RETRY%G")
    assert (again.body, again.reconsume_times) == (b"work", 1)
    marks = props.decode(again.properties)
    assert (marks["RETRY_TOPIC"], marks["ESCAPED_FROM"]) == ("T", f"broker-a:BACK:{record.phy_offset}")
    assert lab.acting.store.offset_max == end
    assert "%RETRY%G" not in lab.acting.topics.by_name, "a topic is the master's to make"


def test_one_that_failed_too_often_becomes_a_dead_letter_there(lab):
    for name in (A0, A1, B0):
        lab.world.call(name, lambda broker: broker.groups.get("G"))
    lab.create(B0, "%RETRY%G")
    lab.send(b"work")
    lab.takeover()
    lab.world.run_for(100)
    (record,) = lab.records(name=A1)
    assert lab.send_back(record, level=-1).code == ResponseCode.SUCCESS
    lab.until(lambda: lab.bodies("%DLQ%G") == [b"work"])
    assert lab.bodies("%RETRY%G") == []


def test_without_a_master_the_consumer_keeps_the_message(lab):
    lab.world.call(A1, lambda broker: broker.groups.get("G"))
    lab.send(b"work")
    lab.world.kill(B0)
    lab.takeover()
    (record,) = lab.records(name=A1)
    reply = lab.send_back(record)
    assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "%RETRY%G" in reply.remark
    assert lab.acting.escape.in_flight == 0


@pytest.mark.parametrize("strategy", ["none", "auto"])
def test_a_slave_that_does_not_act_or_has_no_way_out_refuses(strategy):
    lab = Lab(strategy=strategy)
    lab.world.call(A1, lambda broker: broker.groups.get("G"))
    lab.send(b"work")
    if strategy == "none":
        lab.takeover()
    else:
        lab.world.run_for(1_000)
    (record,) = lab.records(name=A1)
    reply = lab.send_back(record)
    assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "slave" in reply.remark


# --- the puts in flight of a level, decided step by step


class Held:
    """An escape strategy whose answers the test gives."""

    def __init__(self, broker):
        self.asked = []
        broker.node.escape.strategy = self
        roles = broker.node.roles
        broker.turn(lambda: roles._change(Role.ACTING, roles.online, "told by the test"))

    def put(self, message, then):
        self.asked.append((message, then))

    def take(self):
        """Return the queue ids and the callbacks of the puts since the last call."""
        asked, self.asked = self.asked, []
        return [message.put.queue_id for message, _ in asked], [then for _, then in asked]

    def waiting(self):
        return 0

    def facts(self):
        return {"escapeWhy": "the test says so"}

    def stop(self):
        pass


def held(make, queue_ids):
    """Return an acting broker and its strategy, with due delayed messages.

    `queue_ids` has the target queue of each message, in order.
    """
    broker = make()
    client = with_topic(broker, queues=max(queue_ids) + 1)
    for number, queue_id in enumerate(queue_ids):
        send(client, "T", b"%d" % number, i=f"{UNIQ}DELAY\x011\x02", e=str(queue_id))
    strategy = Held(broker)
    broker.advance(1_000)
    return broker, strategy


def answered(broker, then, status=PutStatus.PUT_OK):
    broker.turn(lambda: then(status))
    broker.turn()


def test_few_are_under_way_and_each_for_another_queue(make):
    broker, strategy = held(make, [0, 1, 2, 1, 3])
    queues, (first, second, third) = strategy.take()
    assert queues == [0, 1, 2], "the fourth waits for the second, and the fifth behind it"
    answered(broker, third)
    answered(broker, first)
    assert strategy.take() == ([], [])
    assert broker.node.view.delay.offsets.by_level == {1: 1}
    answered(broker, second)
    queues, thens = strategy.take()
    assert queues == [1, 3]
    assert broker.node.view.delay.offsets.by_level == {1: 3}
    for then in thens:
        answered(broker, then)
    assert broker.node.view.delay.offsets.by_level == {1: 5}


def test_a_level_has_so_many_under_way(make):
    _, strategy = held(make, range(20))
    assert strategy.take()[0] == list(range(ESCAPES_MAX))


def test_after_a_failure_one_alone_is_tried_with_a_growing_pause(make):
    broker, strategy = held(make, range(4))
    _, thens = strategy.take()
    for then in reversed(thens):
        answered(broker, then, PutStatus.SERVICE_NOT_AVAILABLE)
    pauses = []
    for _ in range(30):
        before_ms = broker.clock.mono_ms
        while not strategy.asked:
            broker.advance(50)
        queues, (then,) = strategy.take()
        assert queues == [0]
        pauses.append(broker.clock.mono_ms - before_ms)
        answered(broker, then, PutStatus.UNKNOWN_ERROR)
    assert pauses == sorted(pauses)
    assert 2_000 <= pauses[-1] <= 2_050, "and goes on"
    assert broker.node.view.facts()["escapeWaiting"] == "4"
    seen = []
    broker.advance(2_050)
    while strategy.asked:
        queues, (then,) = strategy.take()
        seen += queues
        answered(broker, then)
    assert seen == [0, 1, 2, 3]
    assert broker.node.view.delay.offsets.by_level == {1: 4}


def test_a_failed_message_is_sent_again_before_those_behind_it(make):
    broker, strategy = held(make, [0, 1, 0, 1])
    _, (first, second) = strategy.take()
    answered(broker, first, PutStatus.SERVICE_NOT_AVAILABLE)
    broker.advance(1_000)
    assert strategy.take() == ([], []), "one is under way"
    answered(broker, second)
    queues, (again,) = strategy.take()
    assert queues == [0]
    answered(broker, again)
    queues, _ = strategy.take()
    assert queues == [0, 1]


def test_a_put_that_ends_after_the_role_counts_and_starts_no_other(make):
    broker, strategy = held(make, [0, 1, 2])
    _, (first, second, third) = strategy.take()
    broker.turn(broker.node.view.delay.stop)
    answered(broker, first)
    answered(broker, second, PutStatus.SERVICE_NOT_AVAILABLE)
    answered(broker, third)
    broker.advance(10_000)
    assert strategy.take() == ([], [])
    assert broker.node.view.delay.offsets.by_level == {1: 1}


def test_a_put_that_ends_after_a_restart_of_the_level_does_not_count(make):
    broker, strategy = held(make, [0, 1])
    _, (first, _) = strategy.take()
    broker.turn(broker.node.view.delay.stop)
    broker.turn(lambda: broker.node.view.delay.start(broker.node.special.destination))
    broker.turn()
    assert strategy.take()[0] == [0, 1]
    answered(broker, first)
    assert broker.node.view.delay.offsets.by_level == {}


def test_a_master_that_stops_while_a_new_topic_is_saved_ends_in_order():
    lab = Lab(containers=CONTAINERS, strategy="local")
    lab.takeover()
    waiting = []
    lab.node(B0).topics.when_saved = waiting.append
    answers = []
    put = Put("%RETRY%New", 0, 0, 0, 1, bytes(8), bytes(8), 0, 0, b"x", b"", 0)
    lab.world.call(A1, lambda broker: broker.escape.put(put, "SCHEDULE:1:0", answers.append))
    lab.until(lambda: waiting)
    lab.world.call(B0, lambda broker: broker.escape.inbox.stop())
    lab.world.call(B0, lambda broker: waiting[0]())
    lab.until(lambda: answers)
    assert answers == [PutStatus.UNKNOWN_ERROR]
    assert lab.bodies("%RETRY%New") == []
