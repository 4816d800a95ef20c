"""The verdict of a drill: the finding of each promise, and the evidence.

A drill is *broken* if a promise is broken. It is *inconclusive* if a promise could not be judged,
or if the drill itself failed (no steady state, no proof of the fault). Otherwise it is *valid*. The
exit codes are 1, 4 and 0.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rmqkit.drill.history import FAIL, FAULT_BEGINS, OK, UNKNOWN, History
from rmqkit.drill.promises.contract import Broken, Finding, Judgement

EXIT_CODES = {Judgement.VALID: 0, Judgement.BROKEN: 1, Judgement.INCONCLUSIVE: 4}


@dataclass(frozen=True, slots=True)
class PromiseResult:
    """One promise with its finding."""

    name: str
    text: str
    finding: Finding


@dataclass(frozen=True, slots=True)
class Event:
    """One event of the timeline."""

    at_ms: int
    what: str
    more: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of a drill, as stored in `verdict.json`."""

    judgement: Judgement
    #: why it is inconclusive; "" otherwise
    why: str
    #: the node that the fault hit
    node: str
    #: the proof of the fault, "" without one
    proof: str
    promises: Sequence[PromiseResult]
    timeline: Sequence[Event]
    #: the fault's column in the table of promises, "" if the fault did not begin
    harm: str = ""
    #: the role of the node that the fault hit
    role: str = "master"
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.judgement]

    @property
    def broken(self) -> list[PromiseResult]:
        return [each for each in self.promises if each.finding.judgement is Judgement.BROKEN]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Verdict":
        """Read a verdict. Raises KeyError, TypeError or ValueError if it is invalid."""
        promises = []
        for each in content["promises"]:
            found = dict(each["finding"])
            found["judgement"] = Judgement(found["judgement"])
            found["broken"] = tuple(Broken(*broken) for broken in found["broken"])
            promises.append(PromiseResult(each["name"], each["text"], Finding(**found)))
        rest = {key: value for key, value in content.items() if key in cls.__slots__}
        rest |= {
            "judgement": Judgement(content["judgement"]),
            "promises": tuple(promises),
            "timeline": tuple(Event(**each) for each in content["timeline"]),
        }
        return cls(**rest)


def verdict_of(history: History, promises: Sequence[PromiseResult], *, node: str, proof: str, why: str) -> Verdict:
    """Combine the findings of the promises into a verdict.

    `why` is the reason for which the drill could not finish, "" if it finished.
    """
    judgements = {each.finding.judgement for each in promises}
    if Judgement.BROKEN in judgements:
        judgement = Judgement.BROKEN
    elif why or not promises or Judgement.INCONCLUSIVE in judgements:
        judgement = Judgement.INCONCLUSIVE
        unclear = [each for each in promises if each.finding.judgement is Judgement.INCONCLUSIVE]
        why = why or "; ".join(f"{each.name}: {each.finding.why}" for each in unclear)
    else:
        judgement = Judgement.VALID
    began = next((row for row in history.events if row.key == FAULT_BEGINS), None)
    return Verdict(
        judgement=judgement,
        why=why,
        node=node,
        proof=proof,
        promises=tuple(promises),
        timeline=tuple(Event(row.invoke_ms, row.key, row.value) for row in history.events),
        harm=str(began.extra.get("harm", "")) if began else "",
        role=str(began.extra.get("role", "master")) if began else "master",
        counts=count(history),
    )


def count(history: History) -> dict[str, int]:
    """Return the numbers of sends, their outcomes and statuses, deliveries and readings."""
    outcomes = {OK: 0, FAIL: 0, UNKNOWN: 0}
    statuses: dict[str, int] = {}
    for row in history.sends:
        outcomes[row.outcome] += 1
        if row.status:
            statuses[row.status] = statuses.get(row.status, 0) + 1
    return {
        "sends": len(history.sends),
        "acknowledged": outcomes[OK],
        "refused": outcomes[FAIL],
        "unknown": outcomes[UNKNOWN],
        **statuses,
        "deliveries": len(history.deliveries),
        "readings": len(history.reads),
    }
