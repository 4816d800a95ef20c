"""Registers defects, which `table.py` and `acting_master.py` define, and plants them.

A defect is a function that replaces methods of one `Broker` object. It is applied at each start of
the broker's process, before the broker starts.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from rmqkit.errors import ConfigError
from rmqkit.suggestions import suggest

if TYPE_CHECKING:
    from rmqkit.broker.node import Broker


class Defect(NamedTuple):
    """One defect; the head of `table.py` describes the fields."""

    name: str
    promise: str
    text: str
    issues: tuple[str, ...]
    needs: str
    plan: Mapping[str, Any] | None
    plant: "Callable[[Broker], None]"
    #: the family of simulated drills that must find it
    family: str
    #: settings without which it has no effect; simulated drills that look for it use them
    settings: Mapping[str, str]


DEFECTS: dict[str, Defect] = {}

Plant = Callable[["Broker"], None]


def defect(
    found: list[Defect],
    name: str,
    promise: str,
    text: str,
    *,
    family: str,
    plan: Mapping[str, Any] | None = None,
    needs: str = "",
    issues: tuple[str, ...] = (),
    settings: Mapping[str, str] | None = None,
) -> Callable[[Plant], Plant]:
    """Return a decorator that adds the defect of a planting function to `found`."""

    def made(plant: Plant) -> Plant:
        found.append(Defect(name, promise, text, issues, needs, plan, plant, family, settings or {}))
        return plant

    return made


def check(names: Iterable[str]) -> None:
    """Raise ConfigError if a name is unknown."""
    for name in names:
        if name not in DEFECTS:
            hint = suggest(name, DEFECTS, "there are {known}")
            raise ConfigError(f"config: drillDefects: unknown defect {name!r}{hint}")


def plant(broker: "Broker", names: Iterable[str]) -> None:
    """Plant defects in a broker that has not started yet. Raises ConfigError."""
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
    """Replace a method of one object."""
    assert callable(getattr(owner, name)), f"{owner} has no method {name}"
    setattr(owner, name, function)


def is_drilled(broker: "Broker", topic: str) -> bool:
    """Return whether the topic belongs to a user.

    Defects of messages leave the broker's own topics alone, so the broker keeps working.
    """
    own_topics = (*broker.view.guarded_topics, broker.config.identity.broker_name)
    return not topic.startswith("%") and topic not in own_topics


def at_restart(broker: "Broker", harm: Callable[[], None]) -> None:
    """Call `harm` when the broker begins to serve a store that is not empty."""
    serve = broker._serve

    def broken() -> None:
        if broker.store.offset_max:
            harm()
        serve()

    replace(broker, "_serve", broken)
