"""What a promise is: a name, a sentence, and a pure function over a drill's history.

A checker reads nothing but the rows and the plan, in O(n log n), and gives a `Finding`:

    valid          there were facts, and all of them keep the promise
    broken         some do not: each is told with its message, whose story the report shows
    inconclusive   there were no facts to judge by; `why` says what is missing

`facts` counts what was looked at; a finding of `valid` without facts cannot be made (`judged`). "Lost" is never said of a
send that was not answered: it is unknown.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from rmqkit.drill.history import History
    from rmqkit.drill.plan import Plan

#: how many broken facts are told one by one; all are counted
TOLD_MAX = 50


class Judgement(StrEnum):
    VALID = "valid"
    BROKEN = "broken"
    INCONCLUSIVE = "inconclusive"


class Broken(NamedTuple):
    """One fact that breaks a promise. `key` is the message's, "" when it is about no single message."""

    key: str
    what: str


@dataclass(frozen=True, slots=True)
class Finding:
    judgement: Judgement
    facts: int
    counts: Mapping[str, int] = field(default_factory=dict)
    broken: Sequence[Broken] = ()
    #: why it is inconclusive, or what a reader has to know of a valid one
    why: str = ""


class Promise(Protocol):
    #: as a plan names it
    name: str
    #: the promise in a sentence
    text: str

    def applies(self, plan: "Plan") -> bool:
        """Whether a cluster as the plan has it makes this promise at all (there is no second log without a slave)."""

    def check(self, history: "History", plan: "Plan") -> Finding: ...


def judged(
    facts: int, broken: Sequence[Broken], counts: Mapping[str, int] | None = None, *, lacking: str = "", why: str = ""
) -> Finding:
    """A finding from what was looked at. `lacking` says what there is too little of to call it valid."""
    counts = dict(counts or {})
    if broken:
        return Finding(Judgement.BROKEN, facts, {**counts, "broken": len(broken)}, tuple(broken[:TOLD_MAX]), why)
    if lacking or not facts:
        return Finding(Judgement.INCONCLUSIVE, facts, counts, (), lacking or "the history has nothing to judge it by")
    return Finding(Judgement.VALID, facts, counts, (), why)
