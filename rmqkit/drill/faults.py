"""The built-in faults: what they do to a node, and how it shows that they bit. Contract: `rmqkit.drill.contract.Fault`.

    kill          SIGKILL: the process is gone, its machine is not. The kernel closes its connections at once.
    pause         SIGSTOP: the process stands still with its connections open, as in a long stall; SIGCONT ends it.
    isolate       nobody reaches it, and it reaches nobody: no byte passes, no connection ends (`rmqkit.shell.isolation`)
    isolate-in    it hears nobody, and what it says is heard
    isolate-out   nobody hears it, and it hears everybody
    isolate-ha    master and slaves are cut off each other on the port for replication alone; clients reach both

A fault keeps nothing about a node but what it did itself; proof is what shows from outside, through the driver. An
isolation is proven by what the node's transport counts: until something was held back, nobody has tried to pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rmqkit.drill.contract import DrillNode, Driver
from rmqkit.drill.promises.table import Harm
from rmqkit.hookspecs import Factory

#: what proves that a cut bites: bytes that were held or left, connections and dials that came to nothing
BITES = ("bytes_held", "bytes_unread", "not_accepted", "dials_held")


class Kill:
    name = "kill"
    text = "SIGKILL: the process is gone"
    harm = Harm.KILL

    def begin(self, driver: Driver, node: DrillNode) -> None:
        driver.kill(node)

    def proof(self, driver: Driver, node: DrillNode) -> str:
        seen = driver.seen(node)
        return "" if seen["alive"] or seen["answers"] else f"{node.name} is gone and answers nobody"

    def end(self, driver: Driver, node: DrillNode) -> None:
        if not driver.seen(node)["alive"]:
            driver.start(node)


class Pause:
    name = "pause"
    text = "SIGSTOP: the process stands still, its connections stay open"
    harm = Harm.PAUSE

    def begin(self, driver: Driver, node: DrillNode) -> None:
        driver.pause(node)

    def proof(self, driver: Driver, node: DrillNode) -> str:
        seen = driver.seen(node)
        if not seen["alive"] or not seen["paused"] or seen["answers"]:
            return ""
        return f"{node.name} is stopped and answers nobody"

    def end(self, driver: Driver, node: DrillNode) -> None:
        if driver.seen(node)["paused"]:
            driver.resume(node)


class Isolate:
    """`rules` are those of the node's drill socket. `silent`: the node answers nobody meanwhile."""

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
        told = ", ".join(f"{key.replace('_', ' ')} {count}" for key, count in bitten.items())
        return f"{node.name} runs and is cut off: {told}"

    def end(self, driver: Driver, node: DrillNode) -> None:
        if driver.seen(node)["alive"]:
            driver.isolate(node, ())


def isolate() -> Isolate:
    return Isolate("isolate", "nobody reaches the node, and it reaches nobody", [{}], silent=True)


def isolate_in() -> Isolate:
    return Isolate("isolate-in", "the node hears nobody", [{"direction": "in"}], silent=True)


def isolate_out() -> Isolate:
    return Isolate("isolate-out", "nobody hears the node", [{"direction": "out"}], silent=True)


def isolate_ha() -> Isolate:
    rules = [{"tag": "ha"}, {"tag": "ha-master"}]
    return Isolate("isolate-ha", "master and slaves are cut off each other, clients are not", rules, silent=False)


#: for the hook `rmqkit_faults`
FAULTS: Mapping[str, Factory] = {
    "kill": Kill,
    "pause": Pause,
    "isolate": isolate,
    "isolate-in": isolate_in,
    "isolate-out": isolate_out,
    "isolate-ha": isolate_ha,
}
