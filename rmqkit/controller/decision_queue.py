"""DecisionQueue: makes one decision at a time, and answers it once it is committed.

A decision is made from the table as it is when its turn comes. Its events are proposed to the log,
and the next decision waits until the log has settled them: so each decision sees all earlier ones.
A decision without events is a read. It is answered after a barrier of the log, so that a controller
that was replaced does not answer from its past.

    submit -> [queue] -> decide -> propose or barrier -> answer

Each submitted decision is answered exactly once:

- as decided, when its events are committed or its barrier holds;
- CONTROLLER_NOT_LEADER, if this controller does not lead when its turn comes, or no barrier holds;
- SYSTEM_ERROR after `ANSWER_TIMEOUT_MS`, as in Apache, or if the events were proposed but this
  controller stopped to lead: they may yet be committed. Brokers repeat their requests;
- SYSTEM_BUSY at once, if `WAITING_MAX` decisions wait.

Source: `controller/.../impl/DLedgerController.EventScheduler`.
"""

from collections import deque
from collections.abc import Callable

from rmqkit.controller.contract import ControllerLog, LogOutcome
from rmqkit.controller.sets.decisions import Resolution, refuse
from rmqkit.controller.sets.events import encode_entry
from rmqkit.runtime.duties import Duties
from rmqkit.runtime.ports import Clock
from rmqkit.wire.codes import ResponseCode

#: `ControllerRequestProcessor.WAIT_TIMEOUT_OUT`
ANSWER_TIMEOUT_MS = 5000
#: the capacity of Apache's queue of events
WAITING_MAX = 1024
DUTY = "controller-answers"

Decide = Callable[[], Resolution]
Answered = Callable[[Resolution], None]

NOT_LEADER = refuse(ResponseCode.CONTROLLER_NOT_LEADER, "The controller is not in leader state")
UNKNOWN = refuse(ResponseCode.SYSTEM_ERROR, "the controller stopped to lead before the change was committed: ask again")
TIMED_OUT = refuse(ResponseCode.SYSTEM_ERROR, f"no majority of the controllers agreed within {ANSWER_TIMEOUT_MS} ms")
BUSY = refuse(ResponseCode.SYSTEM_BUSY, f"{WAITING_MAX} requests wait for the controller's log")


class _PendingDecision:
    """A decision that is not answered yet."""

    __slots__ = ("answered", "decide", "due_ms")

    def __init__(self, decide: Decide, answered: Answered, due_ms: int) -> None:
        self.decide = decide
        #: None once it was called
        self.answered: Answered | None = answered
        self.due_ms = due_ms

    def answer(self, decision: Resolution) -> None:
        answered, self.answered = self.answered, None
        if answered is not None:
            answered(decision)


class DecisionQueue:
    """The decisions of one controller that wait, and the one that the log settles."""

    def __init__(self, log: ControllerLog, clock: Clock, duties: Duties) -> None:
        self._log = log
        self._clock = clock
        self._duties = duties
        self._waiting: deque[_PendingDecision] = deque()
        self._settling: _PendingDecision | None = None
        self._is_pumping = False
        duties.add(DUTY, self._expire, None)

    def __len__(self) -> int:
        return len(self._waiting) + (self._settling is not None)

    def submit(self, decide: Decide, answered: Answered) -> None:
        """Decide when all earlier decisions are settled. `answered` is called once."""
        if len(self._waiting) >= WAITING_MAX:
            answered(BUSY)
            return
        due_ms = self._clock.mono_ms + ANSWER_TIMEOUT_MS
        self._waiting.append(_PendingDecision(decide, answered, due_ms))
        self._duties.wake(DUTY, due_ms)
        self._pump()

    def leadership_changed(self) -> None:
        """Refuse what waits if this controller does not lead any more."""
        self._pump()

    def _pump(self) -> None:
        """Decide until the log has to settle something. An answer may submit again."""
        if self._is_pumping:
            return
        self._is_pumping = True
        try:
            while self._waiting and self._settling is None:
                self._begin(self._waiting.popleft())
        finally:
            self._is_pumping = False

    def _begin(self, each: _PendingDecision) -> None:
        if each.answered is None:
            return
        if not self._log.leadership.is_self:
            each.answer(NOT_LEADER)
            return
        self._settling = each
        decision = each.decide()
        if decision.events:
            self._log.propose(encode_entry(decision.events), lambda outcome: self._settled(each, decision, outcome))
        else:
            self._log.barrier(lambda outcome: self._settled(each, decision, outcome))

    def _settled(self, each: _PendingDecision, decision: Resolution, outcome: LogOutcome) -> None:
        assert self._settling is each, "the log settled a decision twice"
        self._settling = None
        if outcome is LogOutcome.COMMITTED:
            each.answer(decision)
        elif outcome is LogOutcome.LOST and decision.events:
            each.answer(UNKNOWN)
        else:
            each.answer(NOT_LEADER)
        self._pump()

    def _expire(self, now_ms: int) -> int | None:
        while self._waiting and self._waiting[0].due_ms <= now_ms:
            self._waiting.popleft().answer(TIMED_OUT)
        settling = self._settling
        if settling is not None and settling.due_ms <= now_ms:
            settling.answer(TIMED_OUT)
        if self._waiting:
            return self._waiting[0].due_ms
        return settling.due_ms if settling is not None and settling.answered is not None else None

    def validate(self) -> None:
        """Raise AssertionError if something waits although nothing is in the way."""
        assert self._settling is not None or not self._waiting
