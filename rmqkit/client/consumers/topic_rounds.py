"""TopicRounds: repeats a step for each topic of a consumer, to find which queues it works on.

A round runs every `interval_ms`, at once when `soon` is called or the route of a topic changes, at
the given time when `later` is called, every second while a step of the last round was incomplete or
failed, and every 10 s if access control refused a step. Rounds do not overlap: one that comes due
during another runs right after it.

Source: `client/.../impl/consumer/RebalanceService.java`.
"""

from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rmqkit.client.access_denials import RETRY_AFTER_DENIED_MS
from rmqkit.client.flow import start
from rmqkit.errors import AccessDenied, RmqkitError
from rmqkit.wire.topic_names import RETRY_PREFIX

if TYPE_CHECKING:
    from rmqkit.client.client import Client

INCOMPLETE_MS = 1000


@dataclass(slots=True, eq=False)
class TopicRounds:
    """The rounds of one consumer. `step` returns whether the consumer has all of its queues."""

    client: "Client"
    group: str
    interval_ms: int
    topics: Collection[str]
    step: Callable[[str], Coroutine[Any, Any, bool]]
    is_stopped: bool = False
    _running: bool = False
    _run_again: bool = False
    _last_error: str = ""

    @property
    def _duty(self) -> str:
        return f"rebalance-{self.group}"

    def start(self) -> None:
        """Run the first round and listen to route changes."""
        self.client.duties.add(self._duty, self._run, self.client.clock.mono_ms)
        self.client.routes.on_change.append(self._route_changed)

    def stop(self) -> None:
        """Run no more rounds. The result of a running one is ignored."""
        if not self.is_stopped:
            self.is_stopped = True
            self.client.duties.remove(self._duty)
            if self._route_changed in self.client.routes.on_change:
                self.client.routes.on_change.remove(self._route_changed)

    def soon(self) -> None:
        """Run a round now or, during a round, right after it."""
        self.later(0)

    def later(self, pause_ms: int) -> None:
        """Run a round after `pause_ms`, unless one is due earlier. Rounds do not overlap."""
        self.client.duties.wake(self._duty, self.client.clock.mono_ms + pause_ms)

    def _route_changed(self, topic: str) -> None:
        if topic in self.topics:
            self.soon()

    def _run(self, now_ms: int) -> int | None:
        if self._running:
            self._run_again = True
        else:
            self._running = True
            start(self._round())
        return None

    async def _round(self) -> None:
        complete = True
        pause_ms = INCOMPLETE_MS
        for topic in list(self.topics):
            try:
                done = await self.step(topic)
                self._last_error = ""
            except RmqkitError as error:
                # Brokers create a group's retry topic later. Until then it needs no work.
                done = topic.startswith(RETRY_PREFIX)
                if not done and str(error) != self._last_error:
                    self._last_error = str(error)
                    self.client.failures.warning("rebalance-failed", error, group=self.group, topic=topic)
                if isinstance(error, AccessDenied):
                    pause_ms = RETRY_AFTER_DENIED_MS
            if self.is_stopped:
                return
            complete = complete and done
        self._running = False
        pause_ms = 0 if self._run_again else self.interval_ms if complete else pause_ms
        self._run_again = False
        self.client.duties.wake(self._duty, self.client.clock.mono_ms + pause_ms)
