"""What both loads, of real and of simulated clusters, write into the history of their sends and deliveries, and what they
remember of them for the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rmqkit.client.message import MessageExt, SendResult
from rmqkit.drill import workload
from rmqkit.drill.history import FAIL, UNKNOWN, History
from rmqkit.drill.plan import Plan
from rmqkit.errors import ClientError


class RecordedLoad:
    """`broker` is the group that is broken, `name` the topic and what groups begin with."""

    def __init__(self, plan: Plan, history: History, now_ms: Callable[[], int], *, name: str, broker: str) -> None:
        self.plan = plan
        self.history = history
        self.now_ms = now_ms
        self.name = name
        self.broker = broker
        #: by writer, when its last acknowledged send began; by group, when it was last given something
        self.acked_ms: dict[str, int] = {}
        self.given_ms: dict[str, int] = {}
        #: by group, the (broker, queue) → next offset to be given
        self.given: dict[str, dict[tuple[str, int], int]] = {workload.PULL: {}, workload.PUSH: {}}

    def group(self, kind: str) -> str:
        return f"{self.name}-{kind}"

    def sent(self, writer: str, order: workload.Order, invoke_ms: int, outcome: SendResult | ClientError | None) -> None:
        """A send has ended; None when nothing is known of it."""
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
        if queue.broker_name == self.broker:
            self.acked_ms[writer] = invoke_ms

    def delivered(self, kind: str, client: str, message: MessageExt) -> None:
        """A member of the group `kind` was given a message."""
        now_ms = self.now_ms()
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
        )
        self.given_ms[kind] = now_ms
        place = (message.broker_name, message.queue_id)
        table = self.given[kind]
        table[place] = max(table.get(place, 0), message.queue_offset + 1)
