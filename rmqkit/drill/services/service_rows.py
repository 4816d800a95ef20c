"""ServiceRows: writes the rows of timers, transactions and pop, and knows what is still pending.

What is pending follows from the rows alone (`seen`), so the load passes every row of the history:

    timers         acknowledged, not recalled, and not delivered
    transactions   halves that are acknowledged, and neither delivered nor rolled back
    pop            plain messages that are acknowledged, and not yet popped and acked

A recall, a rollback or an ack without an answer may have had its effect, so it ends the wait too.

Any thread may call the methods. Rows of one message may come in any order: a message may be
delivered before its send is answered.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any

from rmqkit.client.message import MessageExt, SendResult
from rmqkit.drill import workload
from rmqkit.drill.history import FAIL, OK, UNKNOWN, History, HistoryRow
from rmqkit.drill.plan import POP, TIMERS, TRANSACTIONS, Plan
from rmqkit.drill.services import scripts
from rmqkit.errors import ClientError
from rmqkit.wire.bodies.pop import ReceiptHandle

#: properties that an acting master adds to a message that it puts on another master
ESCAPED = ("ESCAPED_FROM", "ESCAPED_BY")

#: service → the kind of row that shows that it works, and what lacks without such a row
WORKS: Mapping[str, tuple[str, str]] = {
    TIMERS: ("timer-due", "no timer was delivered"),
    TRANSACTIONS: ("visible", "no committed message was delivered"),
    POP: ("acked", "no popped message was acked"),
}
#: service → the kind of row that begins the wait for a message
BEGINS = {"timer": TIMERS, "half": TRANSACTIONS, "send": POP}
#: service → the kind of row that ends it
ENDS = {"recall": TIMERS, "timer-due": TIMERS, "decide": TRANSACTIONS, "visible": TRANSACTIONS, "acked": POP}
#: the kinds of rows that `ServiceRows.seen` counts; it ignores others
_SEEN = {*BEGINS, *ENDS, *(kind for kind, _ in WORKS.values()), "popped"}


class ServiceRows:
    """`broker` is the broken group; `name` is the topic of plain messages, and the prefix of all
    topics and groups.
    """

    def __init__(self, plan: Plan, history: History, now_ms: Callable[[], int], *, name: str, broker: str) -> None:
        self.plan = plan
        self.history = history
        self.now_ms = now_ms
        self.name = name
        self.broker = broker
        #: service → key → when its row was complete
        self.pending: dict[str, dict[str, int]] = {service: {} for service in plan.services}
        #: service → keys that need no wait
        self._ended: dict[str, set[str]] = {service: set() for service in plan.services}
        #: service → when it last worked
        self._worked_ms: dict[str, int] = {}
        self._guard = threading.Lock()

    @property
    def timer_topic(self) -> str:
        return f"{self.name}-{scripts.TIMER}"

    @property
    def transaction_topic(self) -> str:
        return f"{self.name}-{scripts.TRANSACTION}"

    def topics(self) -> list[str]:
        """Return the topics of the plan's services. Pop uses that of the plain messages."""
        both = {TIMERS: self.timer_topic, TRANSACTIONS: self.transaction_topic}
        return [topic for service, topic in both.items() if service in self.plan.services]

    def group(self, service: str) -> str:
        """Return the consumer group of a service, which for transactions is the producers' too."""
        return f"{self.name}-{service}"

    # --- what is pending

    def seen(self, row: HistoryRow) -> None:
        """Note a row of the history."""
        if row.kind not in _SEEN:
            return
        with self._guard:
            for service, (kind, _) in WORKS.items():
                if row.kind == kind and row.outcome == OK:
                    self._worked_ms[service] = row.complete_ms
            service = ENDS.get(row.kind, "")
            if service in self.pending and _ends(row):
                self._ended[service].add(row.key)
                self.pending[service].pop(row.key, None)
            service = BEGINS.get(row.kind, "")
            if service in self.pending and row.outcome == OK and row.key not in self._ended[service]:
                self.pending[service][row.key] = row.complete_ms
            if row.kind == "popped" and POP in self.pending:
                self.pending[POP][row.key] = row.complete_ms

    def forget(self) -> None:
        """Stop to wait: the fault may have taken what was acknowledged."""
        with self._guard:
            for keys in self.pending.values():
                keys.clear()

    def waits_for(self) -> str:
        """Return what is still pending, "" if nothing is."""
        with self._guard:
            counts = {service: len(keys) for service, keys in self.pending.items() if keys}
        return ", ".join(f"{service}: {count} pending" for service, count in counts.items())

    def lacking(self, since_ms: int) -> str:
        """Return which service has not worked since then, "" if all have."""
        for service in self.plan.services:
            if self._worked_ms.get(service, -1) < since_ms:
                return WORKS[service][1]
        return ""

    # --- timers

    def timer_sent(self, order: scripts.TimerOrder, invoke_ms: int, outcome: SendResult | ClientError | None) -> None:
        """Record the end of a timer's send. `outcome` is None if it is unknown."""
        handle = (outcome.recall_handle or "") if isinstance(outcome, SendResult) else ""
        times = {"delay_ms": order.delay_ms, "due_ms": invoke_ms + order.delay_ms, "handle": handle}
        self._sent("timer", scripts.TIMER_WRITER, order, invoke_ms, outcome, times)

    def recalled(self, order: scripts.TimerOrder, due_ms: int, invoke_ms: int, error: ClientError | None) -> None:
        """Record a recall. `due_ms` is that of the timer; `error` is None if it is confirmed."""
        failed: dict[str, Any] = {} if error is None else {"error": str(error)}
        self.history.add(
            "recall",
            client=scripts.TIMER_WRITER,
            key=order.key,
            invoke_ms=invoke_ms,
            complete_ms=self.now_ms(),
            outcome=OK if error is None else UNKNOWN,
            broker=self.broker,
            due_ms=due_ms,
            **failed,
        )

    def timer_due(self, client: str, message: MessageExt, stored_ms: int) -> None:
        """Record a timer's delivery. `stored_ms` is the store time on the drill's clock."""
        self._received("timer-due", client, message, self.group(TIMERS), stored_ms)

    # --- transactions

    def half_sent(
        self,
        client: str,
        order: scripts.TransactionOrder,
        invoke_ms: int,
        outcome: SendResult | ClientError | None,
    ) -> None:
        """Record the end of a half's send. `outcome` is None if it is unknown."""
        transaction = (outcome.transaction_id or outcome.msg_id) if isinstance(outcome, SendResult) else ""
        words = {"transaction": transaction, "local": order.local, "decision": order.decision}
        self._sent("half", client, order, invoke_ms, outcome, words)

    def decided(
        self, client: str, key: str, value: str, *, by: str, invoke_ms: int, error: str = "", node: str = ""
    ) -> None:
        """Record that a producer reported an outcome. `error`: why it is not confirmed."""
        failed: dict[str, Any] = {"error": error} if error else {}
        self.history.add(
            "decide",
            client=client,
            key=key,
            value=value,
            invoke_ms=invoke_ms,
            complete_ms=self.now_ms(),
            outcome=UNKNOWN if error else OK,
            by=by,
            node=node,
            **failed,
        )

    def visible(self, client: str, message: MessageExt, stored_ms: int) -> None:
        """Record the delivery of a committed message."""
        self._received("visible", client, message, self.group(TRANSACTIONS), stored_ms)

    # --- pop

    def popped(
        self, client: str, message: MessageExt, handle: ReceiptHandle, *, node: str, pop_ms: int, invoke_ms: int
    ) -> None:
        """Record a popped message. `pop_ms` is the pop time of its handle on the drill's clock."""
        self.history.add(
            "popped",
            client=client,
            key=message.keys or "",
            value=workload.checksum(message.body),
            invoke_ms=invoke_ms,
            complete_ms=self.now_ms(),
            broker=handle.broker_name,
            queue=message.queue_id,
            offset=message.queue_offset,
            group=self.group(POP),
            topic=message.topic if handle.flag == "0" else f"retry {handle.flag}",
            node=node,
            pop_ms=pop_ms,
            invisible_ms=handle.invisible_ms,
            attempt=message.reconsume_times,
            handle=handle.encode(),
        )

    def pop_lost(self, client: str, broker: str, *, node: str, invoke_ms: int, error: str) -> None:
        """Record a pop that the broker may have carried out, but whose answer did not arrive."""
        self.history.add(
            "pop",
            client=client,
            invoke_ms=invoke_ms,
            complete_ms=self.now_ms(),
            outcome=UNKNOWN,
            broker=broker,
            group=self.group(POP),
            node=node,
            error=error,
        )

    def acked(self, client: str, key: str, handle: ReceiptHandle, *, node: str, invoke_ms: int, error: str = "") -> None:
        """Record an ack. `error`: why it is not confirmed."""
        failed: dict[str, Any] = {"error": error} if error else {}
        self.history.add(
            "acked",
            client=client,
            key=key,
            invoke_ms=invoke_ms,
            complete_ms=self.now_ms(),
            outcome=UNKNOWN if error else OK,
            broker=handle.broker_name,
            queue=handle.queue_id,
            offset=handle.offset,
            group=self.group(POP),
            handle=handle.encode(),
            node=node,
            **failed,
        )

    # --- inside

    def _sent(
        self,
        kind: str,
        client: str,
        order: scripts.TimerOrder | scripts.TransactionOrder,
        invoke_ms: int,
        outcome: SendResult | ClientError | None,
        extra: Mapping[str, Any],
    ) -> None:
        known: dict[str, Any] = {
            "client": client,
            "key": order.key,
            "value": workload.checksum(order.body),
            "invoke_ms": invoke_ms,
            "complete_ms": self.now_ms(),
            "broker": self.broker,
            **extra,
        }
        if isinstance(outcome, SendResult):
            self.history.add(kind, status=str(outcome.status), **known)
            return
        failed = UNKNOWN if outcome is None or outcome.maybe_stored else FAIL
        self.history.add(kind, outcome=failed, error=str(outcome), **known)

    def _received(self, kind: str, client: str, message: MessageExt, group: str, stored_ms: int) -> None:
        escaped: dict[str, Any] = {name.lower(): message.properties[name] for name in ESCAPED if name in message.properties}
        self.history.add(
            kind,
            client=client,
            key=message.keys or "",
            value=workload.checksum(message.body),
            invoke_ms=self.now_ms(),
            broker=message.broker_name,
            queue=message.queue_id,
            offset=message.queue_offset,
            group=group,
            stored_ms=stored_ms,
            **escaped,
        )


def _ends(row: HistoryRow) -> bool:
    """Return whether this row ends the wait for its message."""
    if row.kind == "decide":
        return row.value == scripts.ROLLBACK
    return row.kind not in ("recall", "acked") or row.outcome != FAIL
