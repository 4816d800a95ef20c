"""Faults that only a simulated cluster can have, and series of faults.

    power-cut    the machine is off: what was not synced is kept, lost or torn page by page; no
                 connection is closed
    disk-loss    the machine is off, and comes back with an empty disk
    isolate-peer traffic between two members of the group is cut, in one direction or both
    series       several faults one after another or at once, at random times on random nodes, drawn
                 from the plan's seed

A series breaks only what a mode can survive. One node of the group (the `victim`) may lose power or
disk. If two machines lost their data at the same time, every mode would lose messages. The other
nodes are killed, paused and isolated. Each step is an event of its own in the history. The checkers
look up the worst of them in the table of promises.
"""

from collections.abc import Sequence
from functools import partial
from random import Random
from typing import NamedTuple

from rmqkit.drill import history as names
from rmqkit.drill.contract import DrillNode, Driver, Fault
from rmqkit.drill.faults import CONTROLLER_FAULTS, FAULTS, Isolate
from rmqkit.drill.plan import Plan
from rmqkit.drill.promises.table import Harm
from rmqkit.drill.sim.driver import SimDriver

SERIES = "series"
#: fewest and most steps of a series
STEPS = (2, 5)
#: shortest and longest step
LASTS_MS = (300, 2_500)
#: time between the starts of two steps
APART_MS = (50, 1_800)


def sim_driver(driver: Driver) -> SimDriver:
    assert isinstance(driver, SimDriver)
    return driver


class PowerCut:
    name = "power-cut"
    text = "the machine loses its power: what was not synced may be gone"
    harm = Harm.POWER_CUT

    def begin(self, driver: Driver, node: DrillNode) -> None:
        sim_driver(driver).power_cut(node)

    def proof(self, driver: Driver, node: DrillNode) -> str:
        return "" if driver.seen(node)["alive"] else f"{node.name} is without power"

    def end(self, driver: Driver, node: DrillNode) -> None:
        if not driver.seen(node)["alive"]:
            driver.start(node)


class DiskLoss(PowerCut):
    name = "disk-loss"
    text = "the machine is lost with its disk, and comes back with an empty one"
    harm = Harm.DISK_LOSS

    def begin(self, driver: Driver, node: DrillNode) -> None:
        sim_driver(driver).lose_disk(node)


def isolate_peer(peer: str, direction: str) -> Isolate:
    """Return a fault that isolates a node from one peer."""
    text = f"no byte passes between the node and {peer} ({direction})"
    return Isolate("isolate-peer", text, [{"peer": peer, "direction": direction}], silent=False)


class Step(NamedTuple):
    """One fault of a series. Times are in ms from the start of the series."""

    at_ms: int
    lasts_ms: int
    node: DrillNode
    fault: Fault


def single(name: str) -> Fault:
    """Return a fault by name: a built-in one, `power-cut` or `disk-loss`."""
    if name == PowerCut.name:
        return PowerCut()
    if name == DiskLoss.name:
        return DiskLoss()
    fault: Fault = FAULTS[name]()
    return fault


#: faults of groups without controllers; seeds depend on their order
REPLICA_FAULTS = tuple(name for name in FAULTS if name not in CONTROLLER_FAULTS)
SINGLE = (*REPLICA_FAULTS, PowerCut.name, DiskLoss.name)


def draw_steps(plan: Plan, nodes: Sequence[DrillNode]) -> list[Step]:
    """Return the steps of a plan's series, in order of their start.

    No step begins on a node that is still broken.
    """
    chance = Random(f"{plan.seed}/series")
    # Most promises are about the master.
    victim = nodes[0] if chance.random() < 0.7 else chance.choice(nodes)
    free_ms = dict.fromkeys((node.name for node in nodes), 0)
    steps: list[Step] = []
    at_ms = 0
    for _ in range(chance.randint(*STEPS)):
        node = chance.choice([*nodes, victim])
        kinds = [name for name in REPLICA_FAULTS if name != "isolate-ha"] + ["isolate-peer", "isolate-ha"]
        if node == victim:
            kinds += [PowerCut.name, DiskLoss.name] * 2
        kind = chance.choice(kinds)
        lasts_ms = chance.randint(*LASTS_MS)
        begins_ms = max(at_ms, free_ms[node.name])
        if kind == "isolate-peer":
            others = [other.name for other in nodes if other != node] or [node.name]
            fault: Fault = isolate_peer(chance.choice(others), chance.choice(("in", "out", "both")))
        else:
            fault = single(kind)
        steps.append(Step(begins_ms, lasts_ms, node, fault))
        free_ms[node.name] = begins_ms + lasts_ms + 100
        at_ms += chance.randint(*APART_MS)
    story = chance.random()
    if len(nodes) > 1 and story < 0.55:
        steps = _lag_and_loss(chance, nodes) if story < 0.25 else _cut_and_restart(chance, nodes)
    steps.sort(key=lambda step: step.at_ms)
    first_ms = steps[0].at_ms
    return [step._replace(at_ms=step.at_ms - first_ms) for step in steps]


def _lag_and_loss(chance: Random, nodes: Sequence[DrillNode]) -> list[Step]:
    """The slaves fall behind, and meanwhile the master loses its power or disk.

    Messages that were answered SEND_OK must survive all the same.
    """
    loss = single(chance.choice((PowerCut.name, DiskLoss.name, DiskLoss.name)))
    at_ms = chance.randint(200, 1_500)
    lag = chance.choice(("pause", "isolate", "isolate-in", "isolate-ha"))
    lags = [Step(chance.randint(0, 100), at_ms + chance.randint(100, 1_500), slave, single(lag)) for slave in nodes[1:]]
    return [*lags, Step(at_ms, chance.randint(*LASTS_MS), nodes[0], loss)]


def _cut_and_restart(chance: Random, nodes: Sequence[DrillNode]) -> list[Step]:
    """The master loses the end of its log, which its slaves have.

    A slave that has truncated its log accordingly is killed soon after.
    """
    back_ms = chance.randint(300, 800)
    slave = chance.choice(nodes[1:])
    # The slave tries to reach its master again after a second.
    kill_ms = back_ms + chance.randint(900, 1_500)
    cut = Step(0, back_ms, nodes[0], single(PowerCut.name))
    return [cut, Step(kill_ms, chance.randint(500, 2_500), slave, single("kill"))]


class Series:
    """A fault that consists of several.

    The engine begins and ends the series; timers begin and end its steps in between.
    """

    name = SERIES
    text = "several faults, at random moments on random nodes"

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = steps
        #: the harm of the first step, which the engine records for the whole series
        self.harm = steps[0].fault.harm
        self.text = "; ".join(f"{s.at_ms} ms {s.fault.name} {s.node.name} for {s.lasts_ms} ms" for s in steps)
        self._broken: dict[str, Step] = {}
        self._left = list(steps)
        self._proof = ""

    @property
    def lasts_ms(self) -> int:
        return max(step.at_ms + step.lasts_ms for step in self.steps)

    def begin(self, driver: Driver, node: DrillNode) -> None:
        for step in self.steps:
            sim_driver(driver).later(step.at_ms, partial(self._begin, driver, step))

    def _begin(self, driver: Driver, step: Step) -> None:
        if step not in self._left:
            return
        self._left.remove(step)
        simulated = sim_driver(driver)
        if step.node.name in self._broken or not driver.seen(step.node)["alive"]:
            return
        now_ms = driver.now_ms()
        driver.history.add(
            "event",
            key=names.FAULT_BEGINS,
            value=f"{step.fault.name} {step.node.name}: {step.fault.text}",
            broker=step.node.broker,
            invoke_ms=now_ms,
            harm=str(step.fault.harm),
            node=step.node.name,
            role=step.node.role if step.node.broker else "nameserver",
            clean=step.fault.name == "stop",
        )
        self._broken[step.node.name] = step
        step.fault.begin(driver, step.node)
        simulated.later(step.lasts_ms, lambda: self._end(driver, step))

    def _end(self, driver: Driver, step: Step) -> None:
        if self._broken.get(step.node.name) is not step:
            return
        self._proof = self._proof or step.fault.proof(driver, step.node)
        del self._broken[step.node.name]
        driver.history.add(
            "event",
            key=names.STEP_ENDS,
            value=f"{step.fault.name} {step.node.name}",
            invoke_ms=driver.now_ms(),
            node=step.node.name,
        )
        simulated = sim_driver(driver)
        if not driver.seen(step.node)["alive"]:
            simulated.begin(step.node)  # `start` would wait, but other steps must continue
        else:
            step.fault.end(driver, step.node)

    def proof(self, driver: Driver, node: DrillNode) -> str:
        for step in self._broken.values():
            self._proof = self._proof or step.fault.proof(driver, step.node)
        return self._proof

    def end(self, driver: Driver, node: DrillNode) -> None:
        self._left.clear()
        for step in list(self._broken.values()):
            self._end(driver, step)
