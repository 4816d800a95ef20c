"""Series of faults for groups whose slaves act for their masters.

A series is one of several scripted courses of faults (`STORIES`), with random faults of other nodes
added, or it is drawn step by step. The stories: a takeover; a master that flaps; a master that
fails again while it returns; its slave fails as well; the whole group fails; a second group fails
too; name servers disagree; clean restarts. In addition to the faults of real drills there are:

    stop           the process is asked to end, and does
    isolate-names  no byte passes between a node and one or all name servers
    clock-jump     the clock of the machine is set
    isolate-peer, power-cut    as in `faults.py`

Name servers are killed, paused and isolated as well.

At most one machine loses its power; a master only with SYNC_FLUSH. In that case the masters of the
other groups are not broken: while a master is away, messages escape to the other masters, and an
escape does not wait until its message is on disk.
"""

from collections.abc import Callable, Sequence
from random import Random

from rmqkit.drill.contract import DrillNode, Driver, Fault
from rmqkit.drill.faults import FAULTS, Isolate
from rmqkit.drill.plan import Flush, Plan
from rmqkit.drill.promises.table import Harm
from rmqkit.drill.sim.faults import PowerCut, Series, Step, isolate_peer, sim_driver

#: faults that make a node unreachable for its peers
AWAY = ("kill", "kill", "pause", "pause", "isolate", "isolate", "isolate-out", "stop")
#: faults of any broker in the meantime
OTHERS = (*AWAY, "isolate-in", "isolate-ha", "isolate-peer", "isolate-names", "isolate-names", "clock-jump")
OF_NAMESERVERS = ("kill", "pause", "isolate", "isolate-peer")
#: long enough for the name servers to notice and for a takeover to end
TAKEOVER_MS = (2_800, 4_500)
LONG_MS = (5_500, 8_000)
SHORT_MS = (100, 900)
JUMPS_MS = (300, 4_000)


class Stop:
    """SIGTERM instead of SIGKILL."""

    name = "stop"
    text = "SIGTERM: the process stops cleanly"
    harm = Harm.KILL

    def begin(self, driver: Driver, node: DrillNode) -> None:
        sim_driver(driver).stop(node)

    def proof(self, driver: Driver, node: DrillNode) -> str:
        return "" if driver.seen(node)["alive"] else f"{node.name} has ended"

    def end(self, driver: Driver, node: DrillNode) -> None:
        driver.kill(node)
        sim_driver(driver).begin(node)


class ClockJump:
    """The clock keeps the new time: the end of the fault does not set it back."""

    name = "clock-jump"
    harm = Harm.PAUSE

    def __init__(self, jump_ms: int) -> None:
        self.jump_ms = jump_ms
        self.text = f"the clock of the machine jumps by {jump_ms} ms"

    def begin(self, driver: Driver, node: DrillNode) -> None:
        sim_driver(driver).jump_clock(node, self.jump_ms)

    def proof(self, driver: Driver, node: DrillNode) -> str:
        return f"the clock of {node.name} has jumped by {self.jump_ms} ms"

    def end(self, driver: Driver, node: DrillNode) -> None:
        """Nothing to repair."""


def isolate_names(nameservers: Sequence[DrillNode]) -> Isolate:
    """Return a fault that isolates a node from these name servers."""
    rules = [{"peer": each.name} for each in nameservers]
    text = f"no byte passes between the node and {', '.join(each.name for each in nameservers)}"
    return Isolate("isolate-names", text, rules, silent=False)


class ActingSeries(Series):
    """A series whose fault, as reported to the engine, is that of the first step on a broker."""

    name = "acting-series"

    def __init__(self, steps: Sequence[Step]) -> None:
        super().__init__(steps)
        self.harm = next(step.fault.harm for step in steps if step.node.broker)


class Drawing:
    """The steps of one plan, while they are drawn."""

    def __init__(self, plan: Plan, brokers: Sequence[DrillNode], nameservers: Sequence[DrillNode]) -> None:
        self.chance = Random(f"{plan.seed}/acting-series")
        self.brokers = brokers
        self.nameservers = nameservers
        self.group = [node for node in brokers if node.broker == brokers[0].broker]
        self.others = [node for node in brokers if node.broker != brokers[0].broker]
        self.is_synced = plan.mode.flush is Flush.SYNC
        self.steps: list[Step] = []

    def add(self, at_ms: int, lasts_ms: int, node: DrillNode, kind: str) -> None:
        """Add a step."""
        lasts_ms = 1 if kind == "clock-jump" else lasts_ms
        self.steps.append(Step(at_ms, lasts_ms, node, self.fault(kind, node)))

    def fault(self, kind: str, node: DrillNode) -> Fault:
        chance = self.chance
        if kind == "stop":
            return Stop()
        if kind == "power-cut":
            return PowerCut()
        if kind == "clock-jump":
            return ClockJump(chance.choice((1, -1)) * chance.randint(*JUMPS_MS))
        if kind == "isolate-names":
            some = self.nameservers if chance.random() < 0.5 else [chance.choice(self.nameservers)]
            return isolate_names(some)
        if kind == "isolate-peer":
            peers = self.brokers if not node.broker else [each for each in self.group_of(node) if each != node]
            return isolate_peer(chance.choice(peers).name, chance.choice(("in", "out", "both")))
        made: Fault = FAULTS[kind]()
        return made

    def group_of(self, node: DrillNode) -> list[DrillNode]:
        return [each for each in self.brokers if each.broker == node.broker]

    def long_ms(self) -> int:
        return self.chance.randint(*(LONG_MS if self.chance.random() < 0.25 else TAKEOVER_MS))

    def away(self, node: DrillNode) -> str:
        """Draw a fault that makes the node unreachable.

        A power cut is possible once, for slaves or with SYNC_FLUSH.
        """
        is_free = node.broker_id > 0 or self.is_synced
        return self.chance.choice((*AWAY, "power-cut") if is_free and not self.has_power_cut else AWAY)

    @property
    def has_power_cut(self) -> bool:
        return any(step.fault.harm is Harm.POWER_CUT for step in self.steps)


def takeover(draw: Drawing) -> None:
    """The master is away long enough for a slave to act."""
    master = draw.group[0]
    draw.add(0, draw.long_ms(), master, draw.away(master))


def flapping(draw: Drawing) -> None:
    """The master fails and returns several times."""
    master, at_ms = draw.group[0], 0
    for _ in range(draw.chance.randint(3, 6)):
        lasts_ms = draw.chance.randint(100, 1_500)
        draw.add(at_ms, lasts_ms, master, draw.chance.choice(("kill", "kill", "pause", "isolate", "stop")))
        at_ms += lasts_ms + draw.chance.randint(100, 1_500)


def again(draw: Drawing) -> None:
    """The master returns and fails again before it has recovered, usually during pre-online."""
    master, chance = draw.group[0], draw.chance
    first_ms = draw.long_ms()
    draw.add(0, first_ms, master, draw.away(master))
    back_ms = first_ms + chance.choice((chance.randint(1, 60), chance.randint(1, 1_000)))
    draw.add(back_ms, chance.choice((chance.randint(*SHORT_MS), draw.long_ms())), master, chance.choice(("kill", "pause")))


def partner(draw: Drawing) -> None:
    """The acting slave fails as well: during the takeover, or when the master returns."""
    master, chance = draw.group[0], draw.chance
    first_ms = draw.long_ms()
    draw.add(0, first_ms, master, draw.away(master))
    at_ms = chance.choice((chance.randint(0, first_ms), first_ms + chance.randint(-50, 300)))
    slave = draw.group[1]
    draw.add(max(0, at_ms), chance.choice((chance.randint(*SHORT_MS), draw.long_ms())), slave, draw.away(slave))


def together(draw: Drawing) -> None:
    """The whole group fails, and returns at the same time."""
    lasts_ms = draw.chance.choice((draw.chance.randint(*SHORT_MS), draw.long_ms()))
    ways = draw.chance.choice((AWAY, ("kill",)))
    for node in draw.group:
        draw.add(draw.chance.randint(0, 100), lasts_ms, node, draw.chance.choice(ways))


def two_groups(draw: Drawing) -> None:
    """The master of another group is away too, so for a time no message can escape."""
    chance = draw.chance
    first_ms = draw.long_ms() + 1_000
    draw.add(0, first_ms, draw.group[0], chance.choice(AWAY))
    for node in draw.others:
        if not node.broker_id:
            draw.add(chance.randint(0, 3_000), chance.randint(500, 4_000), node, chance.choice(AWAY))


def names(draw: Drawing) -> None:
    """Name servers disagree about the group.

    Either one of them is away or isolated and the master fails too, or the master is isolated from
    some of them.
    """
    chance = draw.chance
    if len(draw.nameservers) > 1 and chance.random() < 0.5:
        draw.add(0, draw.long_ms(), draw.nameservers[-1], chance.choice(OF_NAMESERVERS))
        draw.add(chance.randint(0, 2_000), draw.long_ms(), draw.group[0], chance.choice((*AWAY, "isolate-names")))
    else:
        draw.add(0, draw.long_ms(), draw.group[0], "isolate-names")
        if chance.random() < 0.5:
            draw.add(chance.randint(0, 2_000), chance.randint(200, 3_000), chance.choice(draw.nameservers), "kill")


def restarts(draw: Drawing) -> None:
    """Brokers are restarted cleanly: a whole group at once, or two brokers in turn."""
    if draw.chance.random() < 0.6:
        lasts_ms = draw.chance.choice((draw.chance.randint(*SHORT_MS), draw.long_ms()))
        for node in draw.group:
            draw.add(draw.chance.randint(0, 30), lasts_ms, node, "stop")
        return
    at_ms = 0
    for node in draw.chance.sample(list(draw.brokers), k=2):
        lasts_ms = draw.chance.choice((draw.chance.randint(*SHORT_MS), draw.long_ms()))
        draw.add(at_ms, lasts_ms, node, "stop")
        at_ms += lasts_ms + draw.chance.randint(200, 1_500)


def anything(draw: Drawing) -> None:
    """Two to five random faults of random brokers."""
    chance = draw.chance
    at_ms = 0
    for _ in range(chance.randint(2, 5)):
        node = chance.choice([*draw.brokers, *draw.group, draw.group[0]])
        draw.add(at_ms, chance.choice((chance.randint(*SHORT_MS), draw.long_ms())), node, chance.choice(OTHERS))
        at_ms += chance.randint(50, 2_000)


STORIES: Sequence[Callable[[Drawing], None]] = (
    takeover,
    takeover,
    flapping,
    again,
    again,
    partner,
    together,
    two_groups,
    names,
    restarts,
    anything,
    anything,
)


def draw_steps(plan: Plan, brokers: Sequence[DrillNode], nameservers: Sequence[DrillNode]) -> list[Step]:
    """Return the steps of a plan's series, in order of their start.

    No step begins on a node that is still broken.
    """
    draw = Drawing(plan, brokers, nameservers)
    chance = draw.chance
    chance.choice(STORIES)(draw)
    for _ in range(chance.choice((0, 0, 1, 1, 2))):
        node = chance.choice([*draw.brokers, *draw.nameservers])
        kinds = OTHERS if node.broker else OF_NAMESERVERS
        draw.add(chance.randint(0, 4_000), chance.randint(200, 2_500), node, chance.choice(kinds))
    return spread(_spared(draw))


def _spared(draw: Drawing) -> list[Step]:
    """Return the steps without those on other masters, if one master may lose its power."""
    hit = next((step.node for step in draw.steps if step.fault.harm is Harm.POWER_CUT), None)
    if hit is None or hit.broker_id:
        return draw.steps
    return [step for step in draw.steps if not step.node.broker or step.node.broker == hit.broker or step.node.broker_id]


def spread(steps: list[Step]) -> list[Step]:
    """Return the steps, delayed so that those on one node do not overlap; the first is at 0 ms."""
    free_ms: dict[str, int] = {}
    moved = []
    for step in sorted(steps, key=lambda step: step.at_ms):
        at_ms = max(step.at_ms, free_ms.get(step.node.name, 0))
        free_ms[step.node.name] = at_ms + step.lasts_ms + 1
        moved.append(step._replace(at_ms=at_ms))
    moved.sort(key=lambda step: step.at_ms)
    first_ms = moved[0].at_ms
    return [step._replace(at_ms=step.at_ms - first_ms) for step in moved]
