"""The engine: runs a plan with a driver and a fault, and returns the verdict.

    steady state → fault → proof of the fault → end of the fault → recovery → settled
    → load ends, groups catch up → final state read → promises checked

A step that fails makes the drill inconclusive, and the verdict says why. The recovery is the
exception: if the cluster does not recover, the drill reads it in that state, and the promises
report what is wrong. In every case, the engine ends the fault and closes the driver, so the cluster
is as before.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from rmqkit.drill import history as names
from rmqkit.drill.contract import DrillError, DrillNode, Driver, Fault
from rmqkit.drill.history import OK
from rmqkit.drill.plan import Flush
from rmqkit.drill.promises.contract import Promise, chosen
from rmqkit.drill.timeline import derive, taken_over
from rmqkit.drill.verdict import PromiseResult, Verdict, verdict_of

#: with transientStorePoolEnable, acknowledged messages can be read after this time at the latest:
#: more than twice commitIntervalCommitLog
POOL_MS = 600

Tell = Callable[[str], None]


@dataclass
class Outcome:
    """The result of a drill, without its history."""

    verdict: Verdict
    facts_before: dict[str, Any] = field(default_factory=dict)
    facts_after: dict[str, Any] = field(default_factory=dict)


class Engine:
    """Runs one drill. `tell` receives a line of text at each step."""

    def __init__(self, driver: Driver, fault: Fault, promises: Sequence[Promise], tell: Tell = lambda text: None) -> None:
        self._driver = driver
        self._fault = fault
        self._promises = promises
        self._tell = tell
        self._plan = driver.plan
        self._node = DrillNode("")
        self._proof = ""
        self._began = False

    def run(self) -> Outcome:
        """Run the drill and return its outcome.

        A DrillError makes the outcome inconclusive; it is never raised.
        """
        driver = self._driver
        before: dict[str, Any] = {}
        after: dict[str, Any] = {}
        why = ""
        try:
            self._node = self._target()
            before = dict(driver.facts())
            self._steady()
            self._break()
            self._recover()
            self._read()
            after = dict(driver.facts())
        except DrillError as error:
            why = str(error)
        except BaseException:
            self._tell("interrupted: the cluster is restored")
            raise
        finally:
            with suppress(DrillError):  # already reported, or less important than the error being raised
                self._put_back()
            driver.close()
        derive(driver.history)
        checked = [] if why else self._check()
        verdict = verdict_of(driver.history, checked, node=self._node.name, proof=self._proof, why=why)
        return Outcome(verdict, before, after)

    # --- the steps

    def _target(self) -> DrillNode:
        found = [node for node in self._driver.nodes(self._plan.target) if node.broker]
        wanted = [node for node in found if self._plan.group in ("", node.broker)]
        if not wanted:
            raise DrillError(f"no broker matches the target {self._plan.target} {self._plan.group}".rstrip())
        return wanted[0]

    def _steady(self) -> None:
        driver, plan = self._driver, self._plan
        self._event(names.LOAD_BEGINS)
        driver.begin_load()
        if not driver.wait(plan.steady_max_ms, lambda: not driver.lacking()):
            raise DrillError(f"no steady state within {plan.steady_max_ms} ms: {driver.lacking()}")
        self._event(names.STEADY)
        self._tell("steady state: messages are sent and delivered")
        since = len(driver.history)
        driver.wait(plan.before_ms)
        failed = [row for row in driver.history.rows[since:] if row.kind == "send" and row.outcome != OK]
        if failed:
            raise DrillError(
                f"no steady state: {len(failed)} sends failed before the fault ({failed[0].extra.get('error')})"
            )

    def _break(self) -> None:
        driver, plan, node = self._driver, self._plan, self._node
        self._event(
            names.FAULT_BEGINS,
            f"{self._fault.name} {node.name}",
            broker=node.broker,
            harm=str(self._fault.harm),
            node=node.name,
            role=node.role,
        )
        self._tell(f"fault: {node.name}: {self._fault.text}")
        began_ms = driver.now_ms()
        self._began = True
        self._fault.begin(driver, node)

        def shows() -> bool:
            self._proof = self._proof or self._fault.proof(driver, node)
            return bool(self._proof)

        if not driver.wait(plan.bite_max_ms, shows):
            raise DrillError(
                f"the fault {self._fault.name} had no visible effect within {plan.bite_max_ms} ms: nothing is proven"
            )
        self._event(names.FAULT_BITES, self._proof)
        self._tell(f"fault confirmed: {self._proof}")
        driver.wait(max(0, plan.fault_ms - (driver.now_ms() - began_ms)))
        if plan.hold_ms and not driver.wait(plan.hold_ms, lambda: taken_over(driver.history, node)):
            self._tell(f"after {plan.hold_ms} ms more, no slave has granted a lock and released a delayed message")

    def _recover(self) -> None:
        driver, plan, node = self._driver, self._plan, self._node
        self._event(names.FAULT_ENDS, f"{self._fault.name} {node.name}")
        try:
            self._put_back()
        except DrillError as error:
            self._tell(f"{node.name} did not come back: {error}")
        else:
            self._event(names.NODE_BACK, node.name)
            self._tell(f"fault ended: {node.name} answers")
        if driver.wait(plan.recover_max_ms, lambda: not driver.lacking()):
            self._event(names.IN_SYNC_AGAIN)
            self._tell("recovered: everything works as before the fault")
        else:
            self._tell(f"not recovered after {plan.recover_max_ms} ms: {driver.lacking()}")
        driver.wait(plan.settle_ms)

    def _read(self) -> None:
        driver, plan = self._driver, self._plan
        driver.stop_sending()
        self._tell("load ended: consumer groups catch up, then every replica is read")
        if plan.mode.flush is Flush.POOL:
            driver.wait(POOL_MS)  # the newest acknowledged messages cannot be read yet
        driver.wait(plan.drain_max_ms, driver.caught_up)
        self._event(names.LOAD_ENDS)
        driver.read_all()

    def _check(self) -> list[PromiseResult]:
        history = self._driver.history
        return [
            PromiseResult(each.name, each.text, each.check(history, self._plan))
            for each in chosen(self._promises, self._plan)
        ]

    # --- inside

    def _put_back(self) -> None:
        if self._began:
            self._fault.end(self._driver, self._node)
            self._began = False  # only now: an end that raised is tried again

    def _event(self, key: str, value: str = "", broker: str = "", **extra: Any) -> None:
        self._driver.history.add("event", key=key, value=value, broker=broker, invoke_ms=self._driver.now_ms(), **extra)
