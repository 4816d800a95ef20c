"""Series of faults for a group whose master is elected by controllers.

A series is one of several scripted courses of faults (`STORIES`), with random faults of other nodes
added, or it is drawn step by step. A step names its node by what it is when the step begins:
`MASTER`, `SLAVE` (one of them), `LEADER` (the controller that leads), or a node. In addition to the
faults of real drills there are:

    stop             the process is asked to end, and does
    power-cut        of any number of machines, with SYNC_FLUSH; see `plans.py`
    isolate-members  no byte passes between a broker and the other members; controllers reach it
    isolate-controllers  no byte passes between a broker and the controllers; members reach it
    wipe             one controller of three loses its disk
"""

from collections.abc import Callable, Sequence
from random import Random

from rmqkit.drill.contract import DrillNode, Driver, Fault
from rmqkit.drill.faults import FAULTS, Isolate
from rmqkit.drill.plan import Flush, Plan
from rmqkit.drill.promises.table import Harm
from rmqkit.drill.sim.acting_faults import AWAY, LONG_MS, SHORT_MS, TAKEOVER_MS, Stop
from rmqkit.drill.sim.faults import DiskLoss, PowerCut, Series, Step

MASTER, SLAVE, LEADER = DrillNode("the master", "broker-a"), DrillNode("a slave", "broker-a", 1), DrillNode("the leader")
#: faults that keep a broker from its members, from its controllers, or from some bytes
PARTIAL = ("isolate-members", "isolate-members", "isolate-controllers", "isolate-controllers", "isolate-in", "isolate-out")
OF_CONTROLLERS = ("kill", "kill", "pause", "isolate", "isolate-in", "isolate-out", "power-cut")
#: share of the plans with three controllers in which one of them is wiped
WIPES = 0.08
#: share of the plans in which the master's power is off for less than the time-out of heartbeats
UNNOTICED = 0.08
#: most of the time that this takes; the shortest time-out is 1,200 ms
UNNOTICED_MS = 900


class Wipe(DiskLoss):
    """A controller has no messages, so for the promises about them its process has only ended."""

    name = "wipe"
    text = "the controller's machine is lost with its disk, and comes back with an empty one"
    harm = Harm.KILL


class ElectionSeries(Series):
    """A series whose nodes are chosen when a step begins."""

    name = "election-series"

    def __init__(self, steps: Sequence[Step]) -> None:
        super().__init__(steps)
        harms = [step.fault.harm for step in steps if step.node.broker]
        #: what the engine records; each step is an event of its own
        self.harm = harms[0] if harms else Harm.ISOLATE

    def _begin(self, driver: Driver, step: Step) -> None:
        if step not in self._left:
            return
        self._left.remove(step)
        chosen = step._replace(node=_chosen(driver, step.node))
        self._left.append(chosen)
        super()._begin(driver, chosen)


def _chosen(driver: Driver, node: DrillNode) -> DrillNode:
    """Return the node that a step means now."""
    if node == MASTER:
        return driver.nodes("master")[0]
    if node == SLAVE:
        found = driver.nodes("follower")
        return next((each for each in found if driver.seen(each)["alive"]), found[0])
    if node == LEADER:
        return driver.nodes("leader")[0]
    return next((each for each in driver.nodes(node.name)), node)


class StoryDraws:
    """The steps of one plan, while they are drawn."""

    def __init__(self, plan: Plan, brokers: Sequence[DrillNode], controllers: Sequence[DrillNode]) -> None:
        self.chance = Random(f"{plan.seed}/election-series")
        self.brokers = brokers
        self.controllers = controllers
        self.is_synced = plan.mode.flush is Flush.SYNC
        self.steps: list[Step] = []

    def add(self, at_ms: int, lasts_ms: int, node: DrillNode, kind: str) -> None:
        """Add a step."""
        self.steps.append(Step(at_ms, lasts_ms, node, self._fault(kind)))

    def _fault(self, kind: str) -> Fault:
        if kind == "stop":
            return Stop()
        if kind == "power-cut":
            return PowerCut()
        if kind == Wipe.name:
            return Wipe()
        if kind == "isolate-controllers":
            return isolate_from(kind, self.controllers)
        if kind == "isolate-members":
            return isolate_from(kind, self.brokers)
        made: Fault = FAULTS[kind]()
        return made

    def long_ms(self) -> int:
        return self.chance.randint(*(LONG_MS if self.chance.random() < 0.25 else TAKEOVER_MS))

    def some_ms(self) -> int:
        return self.chance.choice((self.chance.randint(*SHORT_MS), self.long_ms()))

    def away(self) -> str:
        """Draw a fault that makes a broker unreachable."""
        return self.chance.choice((*AWAY, "power-cut", "power-cut") if self.is_synced else AWAY)

    def anything(self) -> str:
        """Draw any fault of a broker."""
        return self.chance.choice((self.away(), self.chance.choice(PARTIAL)))


def isolate_from(name: str, nodes: Sequence[DrillNode]) -> Isolate:
    """Return a fault that isolates a node from these nodes."""
    text = f"no byte passes between the node and {', '.join(each.name for each in nodes)}"
    return Isolate(name, text, [{"peer": each.name} for each in nodes], silent=False)


def takeover(draw: StoryDraws) -> None:
    """The master is away long enough for an election; perhaps the next one, too."""
    at_ms = 0
    for _ in range(draw.chance.choice((1, 1, 2, 3))):
        lasts_ms = draw.long_ms()
        draw.add(at_ms, lasts_ms, MASTER, draw.away())
        at_ms += draw.chance.choice((lasts_ms + draw.chance.randint(0, 2_000), draw.chance.randint(100, lasts_ms)))


def leader_too(draw: StoryDraws) -> None:
    """The leader of the controllers and the master are away together."""
    chance = draw.chance
    draw.add(chance.randint(0, 800), draw.some_ms(), LEADER, chance.choice(OF_CONTROLLERS))
    draw.add(chance.randint(0, 800), draw.long_ms(), MASTER, draw.anything())


def no_controllers(draw: StoryDraws) -> None:
    """No controller is there for longer than a lease, and brokers may fail meanwhile."""
    chance, lasts_ms = draw.chance, draw.long_ms()
    kind = chance.choice(("kill", "pause", "isolate", "power-cut"))
    for node in draw.controllers:
        draw.add(chance.randint(0, 100), lasts_ms, node, kind)
    if chance.random() < 0.6:
        draw.add(chance.randint(0, lasts_ms), draw.some_ms(), chance.choice((MASTER, SLAVE)), draw.anything())


def cut_off(draw: StoryDraws) -> None:
    """The master reaches its members and clients, but no controller: another one is elected."""
    lasts_ms = draw.long_ms()
    draw.add(0, lasts_ms, MASTER, "isolate-controllers")
    if draw.chance.random() < 0.4:
        draw.add(draw.chance.randint(0, lasts_ms), draw.some_ms(), draw.chance.choice((MASTER, SLAVE)), draw.anything())


def link_lost(draw: StoryDraws) -> None:
    """The master loses its members, and soon after the controllers: it may acknowledge nothing."""
    chance, at_ms = draw.chance, draw.chance.choice((0, draw.chance.randint(10, 600)))
    node = chance.choice(draw.brokers)
    draw.add(0, draw.long_ms(), MASTER, "isolate-members")
    if chance.random() < 0.5:
        draw.add(at_ms, draw.long_ms(), LEADER, chance.choice(OF_CONTROLLERS))
    draw.add(at_ms, draw.long_ms(), node, chance.choice(("isolate", "isolate", "pause", "kill")))


def silence(draw: StoryDraws) -> None:
    """The master reaches clients alone: neither members nor controllers."""
    rest = [*draw.brokers, *draw.controllers]
    fault = isolate_from("isolate-cluster", rest)
    draw.steps.append(Step(0, draw.long_ms(), MASTER, fault))
    if draw.chance.random() < 0.4:
        draw.add(draw.chance.randint(500, 5_000), draw.some_ms(), draw.chance.choice((MASTER, SLAVE)), draw.anything())


def joining(draw: StoryDraws) -> None:
    """A slave falls behind, and the master fails when the slave is about to be in sync again."""
    chance, lasts_ms = draw.chance, draw.long_ms()
    draw.add(0, lasts_ms, SLAVE, chance.choice((draw.away(), "isolate-members")))
    draw.add(lasts_ms + chance.randint(0, 1_500), draw.long_ms(), MASTER, draw.away())


def flapping(draw: StoryDraws) -> None:
    """The master fails and returns several times, faster than an election or slower."""
    at_ms = 0
    for _ in range(draw.chance.randint(3, 6)):
        lasts_ms = draw.chance.randint(50, 1_500)
        draw.add(at_ms, lasts_ms, MASTER, draw.away())
        at_ms += lasts_ms + draw.chance.randint(50, 1_500)


def together(draw: StoryDraws) -> None:
    """All brokers fail, perhaps with all controllers, and return at times of their own."""
    chance = draw.chance
    dark = [("power-cut",), ("power-cut",), ("kill", "power-cut")] if draw.is_synced else [("kill",)]
    kinds = chance.choice((AWAY, *dark))
    spread_ms = chance.choice((0, 50, 1_000))
    for node in draw.brokers:
        draw.add(chance.randint(0, spread_ms), draw.some_ms(), node, chance.choice(kinds))
    if chance.random() < 0.4:
        for node in draw.controllers:
            draw.add(chance.randint(0, spread_ms), draw.some_ms(), node, chance.choice(("kill", "power-cut")))


def anything(draw: StoryDraws) -> None:
    """Three to eight random faults of random nodes."""
    chance, at_ms = draw.chance, 0
    for _ in range(chance.randint(3, 8)):
        node = chance.choice([*draw.brokers, *draw.controllers, MASTER, MASTER, SLAVE, LEADER])
        draw.add(at_ms, draw.some_ms(), node, draw.anything() if node.broker else chance.choice(OF_CONTROLLERS))
        at_ms += chance.randint(50, 2_500)


def one_machine(draw: StoryDraws) -> None:
    """One broker loses its power, and no other fails: possible with ASYNC_FLUSH, too."""
    draw.add(0, draw.some_ms(), draw.chance.choice((MASTER, SLAVE)), "power-cut")


def wiped(draw: StoryDraws) -> None:
    """A controller comes back with an empty disk, while another one and the master fail."""
    chance, lasts_ms = draw.chance, draw.some_ms()
    draw.add(0, lasts_ms, chance.choice((LEADER, *draw.controllers)), Wipe.name)
    at_ms = chance.choice((0, lasts_ms)) + chance.randint(0, 1_500)
    draw.add(at_ms, draw.some_ms(), chance.choice((LEADER, *draw.controllers)), chance.choice(OF_CONTROLLERS))
    draw.add(chance.randint(0, at_ms + 1_000), draw.long_ms(), MASTER, draw.away())


def unnoticed(draw: StoryDraws) -> None:
    """The master's power is off for so short that the controllers may not notice."""
    draw.add(0, draw.chance.randint(100, UNNOTICED_MS), MASTER, "power-cut")


def late_slave(draw: StoryDraws) -> None:
    """The master is killed, and then a slave that follows the next one loses its power."""
    chance = draw.chance
    draw.add(0, draw.some_ms(), MASTER, "kill")
    draw.add(chance.randint(50, 1_000), draw.some_ms(), SLAVE, "power-cut")


#: the only stories in which a broker loses its power with ASYNC_FLUSH; nothing else hits a broker
ASYNC_CUTS = (one_machine, unnoticed, late_slave)


def is_unnoticed(plan: Plan) -> bool:
    """Return whether the story of a plan is `unnoticed`."""
    return Random(f"{plan.seed}/unnoticed").random() < UNNOTICED


STORIES: Sequence[Callable[[StoryDraws], None]] = (
    takeover,
    takeover,
    leader_too,
    no_controllers,
    cut_off,
    link_lost,
    link_lost,
    silence,
    joining,
    joining,
    flapping,
    together,
    together,
    anything,
    anything,
    anything,
    one_machine,
)


def draw_steps(plan: Plan, brokers: Sequence[DrillNode], controllers: Sequence[DrillNode]) -> list[Step]:
    """Return the steps of a plan's series, in order of their start; the first is at 0 ms.

    A step on a node that is broken when it begins does nothing.
    """
    draw = StoryDraws(plan, brokers, controllers)
    chance = draw.chance
    story = chance.choice(STORIES if draw.is_synced else (*STORIES, one_machine, one_machine, *[late_slave] * 4))
    if is_unnoticed(plan):
        story = unnoticed
    elif len(controllers) > 1 and story not in ASYNC_CUTS and Random(f"{plan.seed}/wipes").random() < WIPES:
        story = wiped
    story(draw)
    for _ in range(chance.choice((0, 0, 1, 2))):
        node = LEADER if story in ASYNC_CUTS else chance.choice([*brokers, *controllers])
        kind = draw.anything() if node.broker else chance.choice(OF_CONTROLLERS)
        draw.add(chance.randint(0, 4_000), chance.randint(200, 2_500), node, kind)
    draw.steps.sort(key=lambda step: step.at_ms)
    first_ms = draw.steps[0].at_ms
    return [step._replace(at_ms=step.at_ms - first_ms) for step in draw.steps]
