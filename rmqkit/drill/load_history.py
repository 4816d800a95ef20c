"""The base of the real and the simulated load.

`RecordedLoad` writes the rows of sends, deliveries and locks. It also remembers what the engine
waits for: acknowledgements, deliveries, and delayed messages that are still due. Its `services`
(`services/service_rows.py`) does the same for timers, transactions and pop.
"""

from collections.abc import Callable, Iterable
from typing import Any

from rmqkit.client.message import MessageExt, SendResult
from rmqkit.drill import workload
from rmqkit.drill.history import FAIL, FAULT_BEGINS, FAULT_BITES, FAULT_ENDS, OK, UNKNOWN, History, HistoryRow
from rmqkit.drill.plan import Plan
from rmqkit.drill.promises.table import Harm, Where, cell
from rmqkit.drill.services.service_rows import ESCAPED, ServiceRows
from rmqkit.errors import ClientError


class RecordedLoad:
    """`broker` is the broken group; `name` is the topic, and the prefix of all groups."""

    def __init__(self, plan: Plan, history: History, now_ms: Callable[[], int], *, name: str, broker: str) -> None:
        self.plan = plan
        self.history = history
        self.now_ms = now_ms
        self.name = name
        self.broker = broker
        #: writer → when its last acknowledged send began
        self.acked_ms: dict[str, int] = {}
        #: when the fault ended, 0 before it; only newer sends and deliveries show a recovery
        self.healed_ms = 0
        #: group → when it last received a message
        self.given_ms: dict[str, int] = {}
        #: group → (broker, queue) → next offset to be delivered
        self.given: dict[str, dict[tuple[str, int], int]] = {workload.PULL: {}, workload.PUSH: {}}
        #: whether a locker got a lock
        self.has_locked = False
        #: delayed messages that are acknowledged but not yet delivered: key → when it is due
        self.waiting: dict[str, int] = {}
        #: keys of the delivered delayed messages: a message may be delivered before its send is
        #: answered
        self._delayed_delivered: set[str] = set()
        self.services = ServiceRows(plan, history, now_ms, name=name, broker=broker)
        #: the event of the fault
        self._fault: HistoryRow | None = None

    def seen(self, row: HistoryRow) -> None:
        """Handle a new row of the history. It becomes `History.on_row`.

        Once the fault is proven, the load stops waiting for the delayed messages that were
        acknowledged before, if the mode permits that this fault takes them from the master. The
        checker of `delay-kept` excuses the same messages.
        """
        self.services.seen(row)
        if row.kind == "event" and row.key == FAULT_BEGINS:
            self._fault = row
        elif row.kind == "event" and row.key == FAULT_ENDS:
            self.healed_ms = row.invoke_ms
        elif row.kind == "event" and row.key == FAULT_BITES and self._fault is not None:
            harm, hits_master = self._fault.extra.get("harm"), self._fault.extra.get("role") == "master"
            if harm in list(Harm) and cell(self.plan.mode, Harm(harm), hits_master=hits_master).where is not Where.MASTER:
                self.waiting.clear()
                self.services.forget()

    def group(self, kind: str) -> str:
        return f"{self.name}-{kind}"

    @property
    def delayed_topic(self) -> str:
        return f"{self.name}-{workload.DELAYED}"

    def sent(self, writer: str, order: workload.Order, invoke_ms: int, outcome: SendResult | ClientError | None) -> None:
        """Record the end of a send. `outcome` is None if it is unknown."""
        known: dict[str, Any] = {
            "client": writer,
            "key": order.key,
            "value": workload.checksum(order.body),
            "invoke_ms": invoke_ms,
            "complete_ms": self.now_ms(),
            "timeout_ms": self.plan.send_timeout_ms,
        }
        if not isinstance(outcome, SendResult):
            failed = UNKNOWN if outcome is None or outcome.maybe_stored else FAIL
            self.history.add("send", outcome=failed, broker=self.broker, queue=order.queue, error=str(outcome), **known)
            return
        queue = outcome.queue
        place: dict[str, Any] = {"broker": queue.broker_name, "queue": queue.queue_id, "offset": outcome.queue_offset}
        self.history.add("send", status=str(outcome.status), **place, **known)
        if order.queue < 0 or queue.broker_name == self.broker:
            self.acked_ms[writer] = invoke_ms

    def delivered(self, kind: str, client: str, message: MessageExt, *, any_order: bool = False) -> None:
        """Record a delivery to the group `kind`.

        `any_order`: the group redelivers failed messages later, so its deliveries prove no order.
        """
        now_ms = self.now_ms()
        more: dict[str, Any] = {"any_order": True} if any_order else {}
        self.history.add(
            "deliver",
            client=client,
            key=message.keys or "",
            value=workload.checksum(message.body),
            invoke_ms=now_ms,
            broker=message.broker_name,
            queue=message.queue_id,
            offset=message.queue_offset,
            group=self.group(kind),
            ordered=kind in workload.IN_ORDER,
            **more,
        )
        self.given_ms[kind] = now_ms
        place = (message.broker_name, message.queue_id)
        table = self.given[kind]
        table[place] = max(table.get(place, 0), message.queue_offset + 1)

    # --- delayed messages

    def delay_sent(
        self, order: workload.Order, delay_ms: int, invoke_ms: int, outcome: SendResult | ClientError | None
    ) -> None:
        """Record the end of a delayed message's send. `outcome` is None if it is unknown."""
        known: dict[str, Any] = {
            "client": workload.DELAYER,
            "key": order.key,
            "value": workload.checksum(order.body),
            "invoke_ms": invoke_ms,
            "complete_ms": self.now_ms(),
            "broker": self.broker,
            "level": order.level,
            "delay_ms": delay_ms,
            "due_ms": invoke_ms + delay_ms,
        }
        if isinstance(outcome, SendResult):
            self.history.add("delay", status=str(outcome.status), **known)
            # The sending and the receiving thread share no lock. Each first writes its own table,
            # then reads that of the other thread. So the later one always sees the earlier write.
            self.waiting[order.key] = invoke_ms + delay_ms
            if order.key in self._delayed_delivered:
                self.waiting.pop(order.key, None)
            self.acked_ms[workload.DELAYER] = invoke_ms
            return
        failed = UNKNOWN if outcome is None or outcome.maybe_stored else FAIL
        self.history.add("delay", outcome=failed, error=str(outcome), **known)

    def due(self, client: str, message: MessageExt, stored_ms: int) -> None:
        """Record a delayed delivery. `stored_ms` is the store time on the drill's clock."""
        key = message.keys or ""
        escaped: dict[str, Any] = {name.lower(): message.properties[name] for name in ESCAPED if name in message.properties}
        self.history.add(
            "due",
            client=client,
            key=key,
            value=workload.checksum(message.body),
            invoke_ms=self.now_ms(),
            broker=message.broker_name,
            queue=message.queue_id,
            offset=message.queue_offset,
            group=self.group(workload.DELAYED),
            stored_ms=stored_ms,
            **escaped,
        )
        self._delayed_delivered.add(key)
        self.waiting.pop(key, None)

    # --- locks

    def locks_asked(
        self, locker: str, node: str, queues: Iterable[int], granted: Iterable[int] | None, invoke_ms: int, error: str = ""
    ) -> None:
        """Record that a locker asked `node` for locks.

        `granted` is None if there was no answer, or an error.
        """
        got = None if granted is None else set(granted)
        self.has_locked = self.has_locked or bool(got)
        for queue in queues:
            extra: dict[str, Any] = {"node": node}
            if got is None:
                outcome = UNKNOWN
                extra["error"] = error
            elif queue in got:
                outcome = OK
                extra["granted_until"] = invoke_ms + self.plan.setting("lockMaxLiveTime", workload.LEASE_MS)
            else:
                outcome = FAIL
            self._lock_row("lock", locker, queue, invoke_ms, outcome, **extra)

    def locks_returned(self, locker: str, node: str, queues: Iterable[int], invoke_ms: int, *, answered: bool) -> None:
        """Record that a locker released locks at `node`, and whether `node` answered."""
        for queue in queues:
            self._lock_row("unlock", locker, queue, invoke_ms, OK if answered else UNKNOWN, node=node)

    def _lock_row(self, kind: str, locker: str, queue: int, invoke_ms: int, outcome: str, **extra: Any) -> None:
        self.history.add(
            kind,
            client=locker,
            key=self.group(workload.LOCK),
            invoke_ms=invoke_ms,
            complete_ms=self.now_ms(),
            outcome=outcome,
            broker=self.broker,
            queue=queue,
            **extra,
        )
