"""The contract of a special duty, as tests: what roles, pre-online and replication rely on.

    from rmqkit.testing import SpecialDutyContract

    class TestMine(SpecialDutyContract):
        row = SpecialRow("mine", "my progress", 46_000, "", MySnapshot.decode, MyDuty)

        def give_work(self, broker, count):
            ...                  # store something that makes `count` messages due

The broker is a slave that runs alone in virtual time, so it starts no special duty by itself. Each
test starts the duty with a `Recorder`, a destination that records the puts and answers them as the
test wants. The tests identify a message by its `origin`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import pytest

from rmqkit.broker.special import table
from rmqkit.broker.special.contract import Snapshot, SpecialDuty, SpecialRow, Then
from rmqkit.store.contract import Put, PutRun, PutStatus
from rmqkit.testing.brokers import NAME, SimBroker
from rmqkit.wire.bodies import ConsumerOffsetTable
from rmqkit.wire.codes import RequestCode

RETRY_MAX_MS = 2_000


class Recorder:
    """A destination that records puts. It answers each put with `answer` at once.

    If `answer` is None, puts stay in flight until `end`.
    """

    in_flight_max: int | None = 8
    retry_max_ms = RETRY_MAX_MS
    save_max_ms: int | None = None
    poll_ms: int | None = 100
    needs_dedup = False
    takes_internal = True
    why = "the test wants it"

    def __init__(self, answer: PutStatus | None = PutStatus.PUT_OK, *, is_serial: bool = False) -> None:
        self.answer = answer
        self.is_serial = is_serial
        #: origins of all attempts, in order
        self.origins: list[str] = []
        #: origins of the attempts that were answered with PUT_OK, in order
        self.stored: list[str] = []
        #: attempts in flight
        self.held: list[tuple[Put, str, Then]] = []

    def put(self, put: Put, origin: str, then: Then) -> None:
        self.origins.append(origin)
        self.held.append((put, origin, then))
        if self.answer is not None:
            self.end(self.answer)

    def put_run(self, run: PutRun, then: Then) -> int:
        """Take none: each attempt is recorded by `put`."""
        return 0

    def withdraw(self) -> None:
        """Nothing waits untried here."""

    def end(self, status: PutStatus = PutStatus.PUT_OK) -> None:
        """Answer all puts in flight."""
        held, self.held = self.held, []
        for _, origin, then in held:
            if status is PutStatus.PUT_OK:
                self.stored.append(origin)
            then(status)


class SpecialDutyContract(ABC):
    """Tests for a special duty. Subclass it, set `row` and write `give_work`.

    Attributes:
        row: The row under test. During a test it replaces the row of its name in the table of
            special duties, or is added to the table.
        settings: Settings of the broker, as `key=value`.
        due_within_ms: The longest time from `give_work` until the duty puts the messages.
        broker: The broker of the current test, a `SimBroker`.

    Example:
        Test a duty that finds work in the messages of a topic:

            from rmqkit.broker.special.contract import SpecialRow
            from rmqkit.testing import SpecialDutyContract

            class TestMine(SpecialDutyContract):
                row = SpecialRow("mine", "my progress", 46_000, "", MySnapshot.decode, MyDuty)

                def give_work(self, broker, count):
                    for _ in range(count):
                        broker.send("orders", b"due", properties={"wait": "2s"})
    """

    row: ClassVar[SpecialRow]
    settings: ClassVar[tuple[str, ...]] = ()
    due_within_ms: ClassVar[int] = 5_000

    @abstractmethod
    def give_work(self, broker: SimBroker, count: int) -> None:
        """Store something that makes `count` messages due within `due_within_ms`.

        A duty that finds its own work does nothing here.

        Args:
            broker: The broker to store it on.
            count: Number of messages.
        """

    @pytest.fixture(autouse=True)
    def _set_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        others = tuple(each for each in table.SPECIAL_DUTIES if each.name != self.row.name)
        monkeypatch.setattr(table, "SPECIAL_DUTIES", (*others, self.row))
        self.broker = self.new_broker()

    # --- for the tests

    def new_broker(self) -> SimBroker:
        """Return a new slave with `settings`, in a world of its own."""
        return SimBroker("brokerRole=SLAVE", "brokerId=1", *self.settings, entry_points=False)

    def duty(self, broker: SimBroker | None = None) -> SpecialDuty[Any]:
        """Return the duty in the broker's current life.

        Args:
            broker: The broker. Default: the test's broker.
        """
        found: SpecialDuty[Any] = (broker or self.broker).node.special.of(self.row.name)
        return found

    def turn(self, function: Callable[[], Any], broker: SimBroker | None = None) -> None:
        """Call a function in a turn of the broker.

        Args:
            function: The function, called without arguments.
            broker: The broker. Default: the test's broker.
        """
        world = (broker or self.broker).world
        world.call(NAME, lambda node: function())
        world.run_for(1)

    def run(self, to: Recorder, count: int, broker: SimBroker | None = None) -> list[str]:
        """Start the duty, give it work, and wait until `count` messages were put.

        Return the origins of all attempts.

        Args:
            to: The destination of the puts.
            count: Number of messages to make due and to wait for.
            broker: The broker. Default: the test's broker.
        """
        broker = broker or self.broker
        self.turn(lambda: self.duty(broker).start(to), broker)
        self.give_work(broker, count)
        self.until(lambda: len(set(to.origins)) >= count, broker)
        return list(to.origins)

    def until(self, reached: Callable[[], Any], broker: SimBroker | None = None) -> None:
        """Let time pass until `reached` returns true. Fails after `due_within_ms`.

        Args:
            reached: The condition.
            broker: The broker. Default: the test's broker.
        """
        world = (broker or self.broker).world
        assert world.run_until(reached, self.due_within_ms), f"not reached within {self.due_within_ms} ms"

    def snapshot(self) -> Snapshot:
        """Return the current progress of the duty on the test's broker."""
        snapshot: Snapshot = self.duty().snapshot()
        return snapshot

    def progress_of(self, table: ConsumerOffsetTable) -> Snapshot:
        """Return the snapshot that the offsets in `table` hold; only for a row without a code."""
        raise AssertionError("a row without a code says how consumer offsets hold its progress")

    # --- on and off

    def test_it_does_nothing_before_it_is_started(self) -> None:
        self.give_work(self.broker, 2)
        before = self.snapshot().encode()
        self.broker.advance(self.due_within_ms)
        assert not self.duty().is_on
        assert not self.duty().is_moving
        assert self.snapshot().encode() == before

    def test_each_message_that_was_put_is_put_once(self) -> None:
        to = Recorder()
        self.run(to, 5)
        assert self.duty().is_on
        self.broker.advance(2_000)
        assert len(to.origins) == len(set(to.origins))

    def test_it_puts_nothing_after_it_was_stopped(self) -> None:
        to = Recorder()
        self.run(to, 2)
        self.turn(self.duty().stop)
        put = len(to.origins)
        self.give_work(self.broker, 2)
        self.broker.advance(self.due_within_ms)
        assert not self.duty().is_on
        assert len(to.origins) == put

    def test_it_may_be_started_again_with_another_destination(self) -> None:
        first, second = Recorder(), Recorder()
        self.run(first, 2)
        self.turn(self.duty().stop)
        self.run(second, 2)
        assert not set(first.origins) & set(second.origins)

    # --- answers

    def test_it_is_moving_while_a_put_is_in_flight(self) -> None:
        to = Recorder(answer=None)
        self.run(to, 1)
        assert self.duty().is_moving
        self.turn(self.duty().stop)
        assert self.duty().is_moving, "a put in flight may still be stored"
        self.turn(to.end)
        assert not self.duty().is_moving

    def test_an_answer_after_the_stop_still_counts(self) -> None:
        to = Recorder(answer=None)
        first = self.run(to, 1)
        self.turn(self.duty().stop)
        self.turn(to.end)
        again = Recorder()
        self.run(again, 1)
        self.broker.advance(1_000)
        assert not set(first) & set(again.origins)

    @pytest.mark.parametrize("status", [PutStatus.SERVICE_NOT_AVAILABLE, PutStatus.UNKNOWN_ERROR])
    @pytest.mark.parametrize("is_serial", [False, True])
    def test_what_was_not_put_is_tried_until_it_is(self, status: PutStatus, is_serial: bool) -> None:
        to = Recorder(answer=status, is_serial=is_serial)
        (first, *_) = self.run(to, 1)
        self.broker.advance(10_000)
        tries = to.origins.count(first)
        assert tries > 2
        self.broker.advance(2 * RETRY_MAX_MS)
        assert to.origins.count(first) > tries, "no retry within 2 * retry_max_ms"
        to.answer = PutStatus.PUT_OK
        self.broker.advance(2 * RETRY_MAX_MS)
        assert to.stored.count(first) == 1

    def test_a_serial_destination_has_one_put_in_flight_for_each_queue(self) -> None:
        to = Recorder(answer=None, is_serial=True)
        self.run(to, 1)
        for _ in range(20):
            queues = [(put.topic, put.queue_id) for put, *_ in to.held]
            assert len(queues) == len(set(queues))
            self.turn(to.end)
            self.give_work(self.broker, 3)
            self.broker.advance(200)

    # --- progress

    def test_a_snapshot_is_what_it_encodes(self) -> None:
        self.run(Recorder(), 3)
        data = self.snapshot().encode()
        assert self.row.decode(data).encode() == data

    def test_a_member_asks_for_it_with_the_code_of_the_row(self) -> None:
        if not self.row.code:
            pytest.skip("its progress is a consumer offset, which is copied with all others")
        self.run(Recorder(), 3)
        self.turn(self.duty().stop)
        if self.row.code:
            assert self.broker.ask(self.row.code).body == self.snapshot().encode()
        else:
            # Its progress is a consumer offset, which members ask for with all others.
            body = self.broker.ask(RequestCode.GET_ALL_CONSUMER_OFFSET).body
            assert self.row.decode(self.snapshot().encode()) == self.snapshot()
            assert self.progress_of(ConsumerOffsetTable.decode(body)) == self.snapshot()

    def test_a_successor_continues_where_the_snapshot_ends(self) -> None:
        done = self.run(Recorder(), 3)
        self.turn(self.duty().stop)
        snapshot = self.row.decode(self.snapshot().encode())
        successor, to = self.new_broker(), Recorder()
        self.give_work(successor, len(done))
        self.turn(lambda: self.duty(successor).merge(snapshot), successor)
        self.run(to, 1, successor)
        assert not set(done) & set(to.origins)

    def test_progress_never_goes_back(self) -> None:
        before = self.snapshot()
        self.run(Recorder(), 3)
        self.turn(self.duty().stop)
        after = self.snapshot().encode()
        assert after != before.encode()
        for snapshot in (before, self.row.decode(after), before):
            self.turn(partial(self.duty().merge, snapshot))
            assert self.snapshot().encode() == after

    def test_a_cut_log_takes_it_back_to_the_progress_of_the_master(self) -> None:
        before = self.snapshot()
        done = self.run(Recorder(), 3)
        self.turn(self.duty().stop)
        self.turn(lambda: self.duty().truncate(before))
        to = Recorder()
        self.turn(lambda: self.duty().start(to))
        self.until(lambda: set(done) <= set(to.origins))

    def test_saved_progress_survives_a_kill(self) -> None:
        done = self.run(Recorder(), 3)
        self.turn(self.duty().stop)
        saved: list[bool] = []
        self.turn(lambda: self.duty().save(lambda: saved.append(True)))
        self.until(lambda: saved)
        after = self.snapshot().encode()
        self.broker.kill()
        self.broker.start()
        assert self.snapshot().encode() == after
        to = Recorder()
        self.run(to, 1)
        assert not set(done) & set(to.origins)

    def test_a_save_without_a_change_is_answered_too(self) -> None:
        saved: list[bool] = []
        self.turn(lambda: self.duty().save(lambda: saved.append(True)))
        self.until(lambda: saved)
        assert self.duty().save_interval_ms > 0

    # --- facts

    def test_facts_are_texts_and_counts_are_not_negative(self) -> None:
        to = Recorder(answer=PutStatus.SERVICE_NOT_AVAILABLE)
        self.run(to, 1)
        assert all(isinstance(name, str) and isinstance(value, str) for name, value in self.duty().facts().items())
        assert self.duty().due_count() >= 1
        self.turn(self.duty().stop)
        assert self.duty().due_count() == 0
