"""The interface of a promise: a name, a sentence, and a pure function over a drill's history.

A checker reads only the rows and the plan, in O(n log n), and returns a `Finding`:

    valid          there were facts, and all of them keep the promise
    broken         some facts break it: each is listed with its message, and the report shows the
                   rows of that message
    inconclusive   there were no facts to judge; `why` says what is missing

`facts` counts the rows and values that were checked. `judged` never returns `valid` without facts.
A send without an answer is unknown; a checker never calls it lost.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from rmqkit.drill.history import History
    from rmqkit.drill.plan import Plan

#: most violations that a finding lists; its counts include all of them
TOLD_MAX = 50


class Judgement(StrEnum):
    VALID = "valid"
    BROKEN = "broken"
    INCONCLUSIVE = "inconclusive"


class Broken(NamedTuple):
    """One fact that breaks a promise.

    `key` is the message's key, "" if the fact is not about a single message.
    """

    key: str
    what: str


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one checker."""

    judgement: Judgement
    facts: int
    counts: Mapping[str, int] = field(default_factory=dict)
    broken: Sequence[Broken] = ()
    #: why it is inconclusive, or a remark about a valid finding
    why: str = ""


class Promise(Protocol):
    """A promise and its checker; see the head of this module."""

    #: its name in plans
    name: str
    #: the promise in a sentence
    text: str

    def applies(self, plan: "Plan") -> bool:
        """Return whether the cluster of this plan makes the promise at all.

        For instance, without a slave there is no second log to compare.
        """

    def check(self, history: "History", plan: "Plan") -> Finding:
        """Check the promise and return the finding."""


def chosen(promises: Iterable[Promise], plan: "Plan") -> list[Promise]:
    """Return the promises that a drill of this plan checks.

    These are the ones that the plan names, or all of them, without those that do not apply.
    """
    return [each for each in promises if each.applies(plan) and (not plan.promises or each.name in plan.promises)]


def judged(
    facts: int, broken: Sequence[Broken], counts: Mapping[str, int] | None = None, *, lacking: str = "", why: str = ""
) -> Finding:
    """Return the finding for `facts` checked facts.

    `lacking` says what is missing for a judgement: unless a fact is broken, it makes the finding
    inconclusive. `why` is a remark for the reader.
    """
    counts = dict(counts or {})
    if broken:
        return Finding(Judgement.BROKEN, facts, {**counts, "broken": len(broken)}, tuple(broken[:TOLD_MAX]), why)
    if lacking or not facts:
        return Finding(Judgement.INCONCLUSIVE, facts, counts, (), lacking or "the history has no facts about it")
    return Finding(Judgement.VALID, facts, counts, (), why)
