"""The built-in faults: their effect on a node, and the proof that the effect shows.

They implement `rmqkit.drill.contract.Fault`.

    kill          SIGKILL: the process ends, its machine does not. The kernel closes its
                  connections at once.
    pause         SIGSTOP: the process stops running with its connections open, as in a long stall.
                  SIGCONT ends the fault.
    isolate       no byte passes in or out, and no connection ends (`rmqkit.shell.faults.isolation`)
    isolate-in    the node receives nothing; what it sends arrives
    isolate-out   nothing that the node sends arrives; it receives everything
    isolate-controllers  the node reaches no controller; clients and members reach it
    kill-leader   SIGKILL of the node and of the controller that leads
    isolate-ha    replication between master and slaves is cut; clients reach both

A fault remembers nothing about a node. Its proof is what the driver sees from outside. The proof of
an isolation is a counter of the node's transport: while all counters are 0, no peer has tried to
communicate, so nothing is proven.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rmqkit.drill.contract import DrillNode, Driver
from rmqkit.drill.promises.table import Harm
from rmqkit.hookspecs import Factory

#: counters of a node's transport that prove an isolation → their texts for users
BITES = {
    "bytes_held": "bytes held back",
    "bytes_unread": "bytes not read",
    "not_accepted": "connections not accepted",
    "dials_held": "connections not opened",
}


class Kill:
    name = "kill"
    text = "SIGKILL: the process ends at once"
    harm = Harm.KILL

    def begin(self, driver: Driver, node: DrillNode) -> None:
        driver.kill(node)

    def proof(self, driver: Driver, node: DrillNode) -> str:
        seen = driver.seen(node)
        return (
            "" if seen["alive"] or seen["answers"] else f"the process of {node.name} is gone, and its port does not answer"
        )

    def end(self, driver: Driver, node: DrillNode) -> None:
        if not driver.seen(node)["alive"]:
            driver.start(node)


class Pause:
    name = "pause"
    text = "SIGSTOP: the process stops running, its connections stay open"
    harm = Harm.PAUSE

    def begin(self, driver: Driver, node: DrillNode) -> None:
        driver.pause(node)

    def proof(self, driver: Driver, node: DrillNode) -> str:
        seen = driver.seen(node)
        if not seen["alive"] or not seen["paused"] or seen["answers"]:
            return ""
        return f"the process of {node.name} is stopped, and its port does not answer"

    def end(self, driver: Driver, node: DrillNode) -> None:
        if driver.seen(node)["paused"]:
            driver.resume(node)


class Isolate:
    """`rules` are those of the node's drill socket (`rmqkit.shell.faults.isolation`).

    `silent`: while isolated, the node must not answer any request, or the fault is not proven.
    """

    harm = Harm.ISOLATE

    def __init__(self, name: str, text: str, rules: Sequence[Mapping[str, Any]], *, silent: bool) -> None:
        self.name = name
        self.text = text
        self._rules = rules
        self._silent = silent

    def begin(self, driver: Driver, node: DrillNode) -> None:
        driver.isolate(node, self._rules)

    def proof(self, driver: Driver, node: DrillNode) -> str:
        seen = driver.seen(node)
        counts = seen.get("transport") or {}
        bitten = {key: counts[key] for key in BITES if counts.get(key)}
        if not seen["alive"] or not bitten or (self._silent and seen["answers"]):
            return ""
        told = ", ".join(f"{BITES[key]} {count}" for key, count in bitten.items())
        return f"the process of {node.name} runs and is isolated: {told}"

    def end(self, driver: Driver, node: DrillNode) -> None:
        if driver.seen(node)["alive"]:
            driver.isolate(node, ())


class IsolateControllers(Isolate):
    needs_controllers = True

    def __init__(self) -> None:
        text = "the node reaches no controller; clients and the other members reach it"
        super().__init__("isolate-controllers", text, (), silent=False)

    def begin(self, driver: Driver, node: DrillNode) -> None:
        driver.isolate(node, [{"peer": each.address} for each in driver.nodes("controller")])


class KillLeader(Kill):
    name = "kill-leader"
    text = "SIGKILL of the node and of the controller that leads"
    needs_controllers = True

    def begin(self, driver: Driver, node: DrillNode) -> None:
        for leader in driver.nodes("leader"):
            driver.kill(leader)
        driver.kill(node)

    def proof(self, driver: Driver, node: DrillNode) -> str:
        gone = [each.name for each in driver.nodes("controller") if not driver.seen(each)["alive"]]
        found = super().proof(driver, node) if gone else ""
        return f"{found}; the controller {', '.join(gone)} is gone, too" if found else ""

    def end(self, driver: Driver, node: DrillNode) -> None:
        for each in driver.nodes("controller"):
            super().end(driver, each)
        super().end(driver, node)


def isolate() -> Isolate:
    return Isolate("isolate", "no traffic reaches or leaves the node", [{}], silent=True)


def isolate_in() -> Isolate:
    return Isolate("isolate-in", "the node receives nothing; what it sends arrives", [{"direction": "in"}], silent=True)


def isolate_out() -> Isolate:
    return Isolate(
        "isolate-out", "nothing that the node sends arrives; it receives everything", [{"direction": "out"}], silent=True
    )


def isolate_ha() -> Isolate:
    rules = [{"tag": "ha"}, {"tag": "ha-master"}]
    return Isolate("isolate-ha", "replication between master and slaves is cut; clients reach both", rules, silent=False)


#: for the hook `rmqkit_faults`
FAULTS: Mapping[str, Factory] = {
    "kill": Kill,
    "pause": Pause,
    "isolate": isolate,
    "isolate-in": isolate_in,
    "isolate-out": isolate_out,
    "isolate-ha": isolate_ha,
    "isolate-controllers": IsolateControllers,
    "kill-leader": KillLeader,
}

#: faults that need a group with controllers
CONTROLLER_FAULTS = ("isolate-controllers", "kill-leader")
