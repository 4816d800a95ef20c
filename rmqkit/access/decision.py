"""Decides by the rules of a user whether it may do something, and by which rule.

The order is Apache's. The rules of the Custom policy that apply decide, those of the Default policy
only if no Custom rule applies. Among several, a rule for a type comes before one for `*`; within a
type LITERAL, then the longer prefix, then the shorter, then ANY; of equal rank, Deny comes first.
The first decides. If no rule applies, the answer is no.

Source: `auth/.../chain/AclAuthorizationHandler.java`, 5.5.0 (5.3.4 put Deny last among equals).
"""

from typing import NamedTuple

from rmqkit.access.model import Action, Decision, Pattern, Policies, PolicyEntry, PolicyType, Resource, ResourceType, Source

_PATTERNS = {Pattern.LITERAL: 0, Pattern.PREFIXED: 1, Pattern.ANY: 2}

NO_MATCH = "no matched policies."
DENIED = "the decision is deny."


class AccessDecision(NamedTuple):
    """The decision on one request, and the rule that made it.

    `entry` and `policy` are None if no rule applied, or the user needs none. `why` is a sentence.
    """

    is_allowed: bool
    why: str
    entry: PolicyEntry | None = None
    policy: PolicyType | None = None


def decide(policies: Policies, asked: Resource, actions: frozenset[Action], source: Source | None) -> AccessDecision:
    """Return whether one of `actions` on `asked` is allowed from `source`."""
    for kind in (PolicyType.CUSTOM, PolicyType.DEFAULT):
        found = [each for each in policies.get(kind, ()) if each.covers(asked, actions, source)]
        if found:
            first = min(found, key=_rank)
            if first.decision is Decision.DENY:
                return AccessDecision(False, DENIED, first, kind)
            return AccessDecision(True, f"the rule allows it: {first}", first, kind)
    return AccessDecision(False, NO_MATCH)


def may_some(policies: Policies, kind: ResourceType, action: Action, source: Source | None) -> bool:
    """Return whether any rule allows the action on some resource of a type.

    Then a list of such resources is worth filtering. A Deny may still hide every one of them.
    """
    return any(
        each.decision is Decision.ALLOW
        and each.resource.type in (kind, ResourceType.ANY)
        and not each.actions.isdisjoint((action, Action.ALL))
        and each.is_for(source)
        for entries in policies.values()
        for each in entries
    )


def _rank(entry: PolicyEntry) -> tuple[bool, int, int, bool]:
    resource = entry.resource
    return (
        resource.type is ResourceType.ANY,
        _PATTERNS[resource.pattern],
        -len(resource.name) if resource.pattern is Pattern.PREFIXED else 0,
        entry.decision is not Decision.DENY,
    )
