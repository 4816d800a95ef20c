"""The contract of an escape strategy, as tests: what an acting master relies on.

    from rmqkit.testing import EscapeContract

    class TestMine(EscapeContract):
        make = my_strategy       # the factory that the plug-in registers

The lab is a simulated cluster. `broker-a-0` acts for its master and has the strategy. `broker-b-0`
is the master of another group.

The acting master retries a message until the strategy answers PUT_OK, and so do the tests
(`put_at_last`). After PUT_OK the message must arrive, even if the acting master fails. It may
arrive more than once only if a response was lost on the way.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest

from rmqkit.broker.escape.contract import EscapeStrategy
from rmqkit.broker.node import Broker
from rmqkit.broker.roles import Role
from rmqkit.broker.view import BrokerView
from rmqkit.sim.cluster import SimCluster
from rmqkit.sim.world import World
from rmqkit.store.contract import Put, PutStatus
from rmqkit.wire import properties as props
from rmqkit.wire.javahash import tags_code
from rmqkit.wire.record import Record, decode_record

ACTING, MASTER = "broker-a-0", "broker-b-0"
TOPIC, OTHER_TOPIC, OWN_TOPIC = "T", "U", "only-here"
QUEUES = 4
HOST = bytes((10, 0, 9, 9, 0, 0, 1, 0))


class EscapeContract:
    """Tests for an escape strategy. Subclass it and set `make`.

    Attributes:
        make: The factory under test. Each start of the acting master calls it with the broker.
        settings: Settings of all brokers.
        puts: Whether the strategy ever puts a message on another master.
        keeps: Whether it stores messages itself while there is no master, and puts them later by
            itself.
        same_process: Whether the other master runs in the process of the acting master.
        answers_within_ms: The longest time of one attempt.
        drains_within_ms: The longest time from the return of a master until it has the messages
            that the strategy stored.
        world: The simulated world of the current test (`rmqkit.sim.world.World`).
        cluster: The simulated cluster of the current test (`rmqkit.sim.cluster.SimCluster`).

    Example:
        Test a strategy that stores messages while there is no master:

            from rmqkit.testing import EscapeContract

            class TestMine(EscapeContract):
                make = my_strategy
                keeps = True
    """

    make: ClassVar[Callable[[BrokerView], EscapeStrategy]]
    settings: ClassVar[dict[str, Any]] = {}
    puts: ClassVar[bool] = True
    keeps: ClassVar[bool] = False
    same_process: ClassVar[bool] = False
    answers_within_ms: ClassVar[int] = 10_000
    drains_within_ms: ClassVar[int] = 60_000

    @pytest.fixture(autouse=True)
    def _set_up(self) -> None:
        make = type(self).make

        def prepared(broker: Broker) -> None:
            if broker.name == ACTING:
                broker.roles.state.role = Role.ACTING
                broker.escape.strategy = make(broker.view)

        self.world = World(1)
        containers = [(ACTING, MASTER)] if self.same_process else []
        self.cluster = SimCluster(
            self.world, groups=2, containers=containers, settings=dict(self.settings), prepared=prepared
        )
        self.cluster.ready()
        for name in (ACTING, MASTER):
            self._create(name, TOPIC)
            self._create(name, OTHER_TOPIC)
        self._create(ACTING, OWN_TOPIC)
        self.world.run_for(100)

    # --- for the tests

    @property
    def strategy(self) -> EscapeStrategy:
        """The strategy of the acting master's current life."""
        return self.cluster.broker(ACTING).escape.strategy

    def put(self, body: bytes, *, topic: str = TOPIC, queue_id: int = 0, level: int = 0, **more: Any) -> PutStatus:
        """Make one attempt to put a message, and return its status.

        Fails if there is no status within `answers_within_ms`.

        Args:
            body: The body. It also makes the message's UNIQ_KEY and its origin.
            topic: The topic.
            queue_id: The queue.
            level: The delay level that the message still waits for at the other master; 0: none.
            **more: `properties` as a dict, and other fields of `rmqkit.store.contract.Put`.
        """
        properties = {"UNIQ_KEY": body.hex(), **more.pop("properties", {})}
        tags = properties.get("TAGS")
        put = Put(
            topic=topic,
            queue_id=queue_id,
            flag=0,
            sys_flag=0,
            born_ms=1_750_000_000_123,
            born_host=HOST,
            store_host=HOST,
            reconsume_times=0,
            prepared_offset=0,
            body=body,
            properties=props.encode(properties),
            tags_code=tags_code(tags) if tags else 0,
        )._replace(**more)
        answers: list[PutStatus] = []
        origin = f"SCHEDULE:1:{body.decode('latin-1')}"
        self.world.call(ACTING, lambda broker: broker.escape.put(put, origin, answers.append, level=level))
        assert self.world.run_until(lambda: answers, self.answers_within_ms), "no status within answers_within_ms"
        self.answers = answers
        return answers[0]

    def put_at_last(self, body: bytes, **more: Any) -> None:
        """Attempt to put a message until the status is PUT_OK, as the acting master does.

        Fails after 60 attempts, 500 ms apart.

        Args:
            body: The body.
            **more: Further arguments of `put`.
        """
        for _ in range(60):
            if self.put(body, **more) is PutStatus.PUT_OK:
                return
            self.world.run_for(500)
        raise AssertionError(f"no PUT_OK in 60 attempts; facts: {dict(self.strategy.facts())}")

    def stored(self, topic: str = TOPIC, name: str = MASTER) -> list[Record]:
        """Return the messages of a topic as records, in the order of the broker's log.

        Args:
            topic: The topic.
            name: The broker.
        """
        broker = self.cluster.broker(name)
        found = []
        for queue in broker.store.queues():
            if queue.topic == topic:
                for offset in range(queue.offset_min, queue.offset_max):
                    (entry,) = broker.store.entries(topic, queue.queue_id, offset, 1)
                    record = decode_record(broker.store.read_log(entry.phy_offset, entry.size), check_crc=True)
                    assert isinstance(record, Record)
                    found.append(record)
        return sorted(found, key=lambda each: each.phy_offset)

    def bodies(self, topic: str = TOPIC) -> list[bytes]:
        """Return the bodies of a topic's messages at the other master, in the order of its log.

        Args:
            topic: The topic.
        """
        return [bytes(each.body) for each in self.stored(topic)]

    def arrive(self, wanted: Sequence[bytes], topic: str = TOPIC) -> None:
        """Wait until the other master has all wanted messages; check that it has no other ones.

        The first copies of the messages must be in the wanted order. The strategy may take
        `drains_within_ms` to put what it has stored.

        Args:
            wanted: The bodies, in order.
            topic: The topic.
        """
        self.world.run_until(lambda: set(wanted) <= set(self.bodies(topic)), self.drains_within_ms)
        assert list(dict.fromkeys(self.bodies(topic))) == list(wanted)

    def lose_master(self) -> None:
        """Kill the other master; stop and remove it if it runs in the acting master's process."""
        if self.same_process:
            self.world.stop(MASTER)
            assert self.world.run_until(lambda: not self.world.is_alive(MASTER), 30_000)
            self.cluster.broker(ACTING).view.neighbours = []
        else:
            self.world.kill(MASTER)
        self.world.run_for(100)

    def bring_master_back(self) -> None:
        """Start the other master again and wait until it is registered."""
        self.world.restart(MASTER)
        assert self.world.run_until(lambda: self.cluster.broker(MASTER).registration.registered, 30_000)

    def _create(self, name: str, topic: str) -> None:
        self.world.call(name, lambda broker: broker.topics.create_system(topic, QUEUES))

    def _only_if(self, wanted: bool) -> None:
        if not wanted:
            pytest.skip("the strategy does not promise this")

    # --- the contract

    def test_a_message_that_was_put_is_at_the_other_master_once(self) -> None:
        self._only_if(self.puts)
        assert self.put(b"one") is PutStatus.PUT_OK
        self.arrive([b"one"])
        self.world.run_for(20_000)
        assert self.bodies() == [b"one"]
        assert len(self.answers) == 1, "an attempt was answered again"
        assert self.strategy.waiting() == 0
        assert not self.strategy.facts().get("escapeWhy")

    def test_it_is_the_message_that_was_sent(self) -> None:
        self._only_if(self.puts)
        body = bytes(range(1, 256))
        properties = {"TAGS": "été", "KEYS": "k1 k2", "mine": "a=b;c", "PGROUP": "shop", "DELAY": "3", "REAL_QID": "2"}
        self.put_at_last(body, queue_id=2, flag=7, reconsume_times=2, sys_flag=1, properties=properties)
        self.arrive([body])
        (record,) = self.stored()
        assert (record.topic, record.queue_id, record.flag, record.reconsume_times) == (TOPIC, 2, 7, 2)
        assert (record.born_ms, record.sys_flag & 1) == (1_750_000_000_123, 1)
        stored = props.decode(record.properties)
        assert {name: stored[name] for name in ("TAGS", "KEYS", "mine", "PGROUP")} == {
            name: properties[name] for name in ("TAGS", "KEYS", "mine", "PGROUP")
        }
        assert stored["UNIQ_KEY"] == body.hex()
        assert "DELAY" not in stored, "the message would be delayed again"
        (entry,) = self.cluster.broker(MASTER).store.entries(TOPIC, 2, 0, 10)
        assert entry.tags_code == tags_code("été")

    def test_it_says_where_it_comes_from_and_who_put_it(self) -> None:
        self._only_if(self.puts)
        self.put_at_last(b"one")
        self.arrive([b"one"])
        marks = props.decode(self.stored()[0].properties)
        assert marks["ESCAPED_FROM"] == "broker-a:SCHEDULE:1:one"
        assert marks["ESCAPED_BY"] == "broker-a:0"

    def test_messages_stay_in_order(self) -> None:
        self._only_if(self.puts)
        bodies = [b"%03d" % number for number in range(30)]
        for body in bodies:
            self.put_at_last(body)
        self.arrive(bodies)

    def test_a_queue_that_the_other_master_does_not_have_is_no_reason(self) -> None:
        self._only_if(self.puts)
        self.put_at_last(b"one", queue_id=QUEUES + 3)
        self.arrive([b"one"])
        assert 0 <= self.stored()[0].queue_id < QUEUES

    def test_a_delay_that_is_left_is_waited_for_over_there(self) -> None:
        self._only_if(self.puts)
        self.put_at_last(b"late", level=2)
        self.world.run_for(4_900)
        assert self.bodies() == []
        self.world.run_for(self.drains_within_ms if self.keeps else 1_000)
        assert self.bodies() == [b"late"]

    def test_retries_and_dead_letters_of_a_group(self) -> None:
        self._only_if(self.puts)
        for name in (ACTING, MASTER):
            self.world.call(name, lambda broker: broker.groups.get("G"))
            self._create(name, "%RETRY%G")
        self.world.run_for(100)
        self.put_at_last(b"again", topic="%RETRY%G", reconsume_times=3)
        self.put_at_last(b"dead", topic="%DLQ%G", reconsume_times=17)
        self.arrive([b"again"], "%RETRY%G")
        self.arrive([b"dead"], "%DLQ%G")
        assert self.stored("%RETRY%G")[0].reconsume_times == 3

    def test_nothing_goes_into_the_own_log(self) -> None:
        end = self.cluster.broker(ACTING).store.offset_max
        self.put(b"one")
        self.put(b"two", topic=OWN_TOPIC)
        self.world.run_for(5_000)
        assert self.cluster.broker(ACTING).store.offset_max == end

    def test_without_a_master_nothing_is_lost(self) -> None:
        self.lose_master()
        status = self.put(b"one")
        assert (status is PutStatus.PUT_OK) == (self.strategy.waiting() == 1 and self.keeps)
        assert self.strategy.facts().get("escapeWhy"), "escapeWhy must say why the attempt failed"
        self._only_if(self.puts)
        self.bring_master_back()
        if status is not PutStatus.PUT_OK:
            self.put_at_last(b"one")
        self.put_at_last(b"two")
        self.arrive([b"one", b"two"])
        self.world.run_for(1_000)
        assert self.strategy.waiting() == 0

    def test_a_topic_that_no_other_master_has(self) -> None:
        """The strategy must not create the topic there: no consumer would read it."""
        status = self.put(b"one", topic=OWN_TOPIC)
        assert (status is PutStatus.PUT_OK) == self.keeps
        self._only_if(self.puts)
        self.put_at_last(b"other", topic=OTHER_TOPIC)
        self.arrive([b"other"], OTHER_TOPIC)
        self._create(MASTER, OWN_TOPIC)
        self.world.run_for(3_000)
        if status is not PutStatus.PUT_OK:
            self.put_at_last(b"one", topic=OWN_TOPIC)
        self.arrive([b"one"], OWN_TOPIC)

    def test_a_master_that_does_not_answer_costs_no_message(self) -> None:
        """After SIGSTOP it is unknown whether the master has stored the message."""
        self._only_if(self.puts and not self.same_process)
        self.put_at_last(b"before")
        self.world.pause(MASTER)
        status = self.put(b"one")
        assert status is not PutStatus.PUT_OK or self.keeps
        self.world.run_for(4_000)
        self.world.resume(MASTER)
        if status is not PutStatus.PUT_OK:
            self.put_at_last(b"one")
        self.put_at_last(b"two")
        self.arrive([b"before", b"one", b"two"])

    def test_what_was_put_survives_the_acting_broker(self) -> None:
        self._only_if(self.puts)
        if not self.same_process:
            self.lose_master()
        status = self.put(b"one")
        for name in self.cluster.together(ACTING):
            self.world.kill(name)
        if not self.same_process:
            self.bring_master_back()
        for name in self.cluster.together(ACTING):
            self.world.restart(name)
        assert self.world.run_until(lambda: self.cluster.broker(ACTING).serving, 30_000)
        self.world.run_for(2_000)
        if status is not PutStatus.PUT_OK:
            self.put_at_last(b"one")
        self.arrive([b"one"])

    def test_a_broker_stops_with_it(self) -> None:
        self.put(b"one")
        self.world.stop(ACTING)
        assert self.world.run_until(lambda: not self.world.is_alive(ACTING), 30_000)

    def test_facts_are_texts(self) -> None:
        self.put(b"one")
        facts = self.strategy.facts()
        assert all(isinstance(name, str) and isinstance(value, str) for name, value in facts.items())
