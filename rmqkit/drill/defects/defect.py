"""Planting: what a defect is, and how one is put into a broker. The defects themselves are in `table.py` and
`acting_master.py`.

A defect is a function that replaces methods of one `Broker` object, in each of its lives, before it starts.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from rmqkit.errors import ConfigError
from rmqkit.suggestions import suggest

if TYPE_CHECKING:
    from rmqkit.broker.node import Broker


class Defect(NamedTuple):
    name: str
    promise: str
    text: str
    issues: tuple[str, ...]
    needs: str
    plan: Mapping[str, Any] | None
    plant: "Callable[[Broker], None]"
    #: of simulated drills: where it is looked for
    family: str = "replicas"
    #: settings without which it does nothing: those of the plans in which it is looked for
    settings: Mapping[str, str] = {}


DEFECTS: dict[str, Defect] = {}

Plant = Callable[["Broker"], None]


KILL: Mapping[str, Any] = {"fault": "kill", "target": "master"}


def defect(
    name: str,
    promise: str,
    text: str,
    *,
    plan: Mapping[str, Any] | None = KILL,
    needs: str = "",
    issues: tuple[str, ...] = (),
    settings: Mapping[str, str] | None = None,
) -> Callable[[Plant], Plant]:
    def made(plant: Plant) -> Plant:
        DEFECTS[name] = Defect(name, promise, text, issues, needs, plan, plant, settings=settings or {})
        return plant

    return made


def check(names: Iterable[str]) -> None:
    """Raises ConfigError for an unknown name."""
    for name in names:
        if name not in DEFECTS:
            hint = suggest(name, DEFECTS, "there are {known}")
            raise ConfigError(f"config: drillDefects has no {name!r}{hint}")


def plant(broker: "Broker", names: Iterable[str]) -> None:
    """Break a broker that has not started. Raises ConfigError."""
    names = tuple(names)
    check(names)
    if not names:
        return
    for name in names:
        DEFECTS[name].plant(broker)
    told = ";".join(names)
    facts = broker.view.facts
    replace(broker.view, "facts", lambda: {**facts(), "drillDefects": told})
    broker.ports.log.warning(
        "BROKEN ON PURPOSE", defects=told, meaning="drillDefects plants defects: this broker breaks its promises"
    )


def replace(owner: object, name: str, function: Callable[..., Any]) -> None:
    assert callable(getattr(owner, name)), f"{owner} has no method {name}"
    setattr(owner, name, function)


def is_drilled(broker: "Broker", topic: str) -> bool:
    """Whether a topic is a user's: the broker's own work goes on."""
    own_topics = (*broker.view.guarded_topics, broker.config.identity.broker_name)
    return not topic.startswith("%") and topic not in own_topics


def at_restart(broker: "Broker", harm: Callable[[], None]) -> None:
    """Do harm when the broker begins to serve a store that has something in it."""
    serve = broker._serve

    def broken() -> None:
        if broker.store.offset_max:
            harm()
        serve()

    replace(broker, "_serve", broken)
