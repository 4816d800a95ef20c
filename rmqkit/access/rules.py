"""Rules: what a request code demands of its caller. Each row of a table of handlers has one.

    @rows.handles(RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequest, access=on_topic(SUB, GET))

- `on_topic(SUB, GET)` demands one of these actions on the topic that the header's field `topic`
  names, `on_group(...)` on the group of the field `consumer_group`. `field` names another field.
- `on_cluster(GET)` demands it on the broker's cluster.
- `inner` admits the cluster's own nodes and super users, `any_user` every user.
- `lists(TOPIC)` admits who may see some topic. The handler then filters what it lists
  (`call.visible`). `all_listed(TOPIC)` demands List on the whole type.
- `every(...)` demands all of several rules, `either(...)` one of them.
- `named(...)` demands those whose field is present, and one at least.
- `in_body(TEXT, function)` is for requests that name their resources in the body.
- `after_read(TEXT)` admits every user: the handler demands more (`call.demand`) when it has read
  the message that the request points to.
- `from_dialled` is for the requests that a client gets on a link that it dialled.

A header without the field, where the field is optional, demands the action on the whole type.
`text` of a rule is its short form in the documentation: `T:S + G:S`.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from rmqkit.access.caller import Principal
from rmqkit.access.model import Action, ResourceType
from rmqkit.runtime.calls import Call

PUB, SUB, CREATE, UPDATE = Action.PUB, Action.SUB, Action.CREATE, Action.UPDATE
DELETE, GET, LIST = Action.DELETE, Action.GET, Action.LIST
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP

_LETTERS = {PUB: "P", SUB: "S", CREATE: "c", UPDATE: "u", DELETE: "d", GET: "g", LIST: "l"}
_CHANGES = frozenset((CREATE, UPDATE, DELETE))
#: returns why a caller may not make a call, None if it may
Check = Callable[[Any, Call[Any]], str | None]


class Rule(NamedTuple):
    """A demand of a request code, and its short text."""

    text: str
    refusal: Check
    #: a name server that does not sign may send it: it only hints that a route has changed
    is_hint: bool = False
    #: a change by an administrator, which the audit notes when it has succeeded
    is_change: bool = False


def on_topic(*actions: Action, field: str = "topic") -> Rule:
    """Demand one of the actions on the topic that a field of the header names."""
    wanted = frozenset(actions)

    def refusal(caller: Principal, call: Call[Any]) -> str | None:
        return caller.on_topic(getattr(call.args, field) or "", wanted)

    return Rule(f"T:{_short(actions)}", refusal, is_change=wanted <= _CHANGES)


def on_group(*actions: Action, field: str = "consumer_group") -> Rule:
    """Demand one of the actions on the group that a field of the header names."""
    wanted = frozenset(actions)

    def refusal(caller: Principal, call: Call[Any]) -> str | None:
        return caller.on_group(getattr(call.args, field) or "", wanted)

    return Rule(f"G:{_short(actions)}", refusal, is_change=wanted <= _CHANGES)


def on_cluster(*actions: Action) -> Rule:
    """Demand one of the actions on the broker's cluster."""
    wanted = frozenset(actions)
    return Rule(f"C:{_short(actions)}", lambda caller, call: caller.on_cluster(wanted), is_change=wanted <= _CHANGES)


def lists(kind: ResourceType) -> Rule:
    """Admit a caller who may see some topic, or some group."""
    letter = "T" if kind is TOPIC else "G"
    return Rule(f"{letter}*:l; other users get only what they may see", lambda caller, call: caller.on_list(kind))


def all_listed(kind: ResourceType) -> Rule:
    """Admit a caller who may list the whole type."""
    wanted = frozenset((LIST,))
    if kind is TOPIC:
        return Rule("T*:l", lambda caller, call: caller.on_topic("", wanted))
    return Rule("G*:l", lambda caller, call: caller.on_group("", wanted))


#: the cluster's own nodes, which sign with the inner credentials, and super users
inner = Rule("int", lambda caller, call: caller.on_inner())
#: the same, for a change that the audit notes: of a node that has no table of users
inner_change = inner._replace(is_change=True)
#: every user whose signature is right
any_user = Rule("any user", lambda caller, call: None)
#: inner, or a hint from the address of a name server or controller that does not sign
hint = Rule("int, or a hint from a name server or controller", lambda caller, call: caller.on_inner(), is_hint=True)
#: a request that a client gets, on a link that the client dialled to a broker
from_dialled = Rule("a link that the client dialled", lambda caller, call: _not_dialled(call))


def after_read(text: str) -> Rule:
    """Admit every user. The handler demands what `text` says once it has read the message."""
    return Rule(text, any_user.refusal)


def every(*rules: Rule) -> Rule:
    """Demand all of the rules."""
    checks = [each.refusal for each in rules]

    def refusal(caller: Principal, call: Call[Any]) -> str | None:
        for check in checks:
            why = check(caller, call)
            if why is not None:
                return why
        return None

    return Rule(" + ".join(each.text for each in rules), refusal, is_change=any(each.is_change for each in rules))


def either(*rules: Rule) -> Rule:
    """Demand one of the rules. The refusal is that of the last."""

    def refusal(caller: Principal, call: Call[Any]) -> str | None:
        why: str | None = None
        for each in rules:
            why = each.refusal(caller, call)
            if why is None:
                return None
        return why

    return Rule(" or ".join(each.text for each in rules), refusal)


def named(*parts: tuple[str, Rule]) -> Rule:
    """Demand the rules whose field is present. If none is, all are demanded for the whole type."""

    def refusal(caller: Principal, call: Call[Any]) -> str | None:
        present = [each for field, each in parts if getattr(call.args, field)]
        for each in present or [each for _, each in parts]:
            why = each.refusal(caller, call)
            if why is not None:
                return why
        return None

    return Rule(" + ".join(each.text for _, each in parts) + "; only what the request names, one at least", refusal)


def in_body(text: str, check: Check, *, is_change: bool = False) -> Rule:
    """Demand what `check` finds in the body. It may raise RemoteProtocolError for a bad body."""
    return Rule(text, check, is_change=is_change)


def first_refusal(refusals: Iterable[str | None]) -> str | None:
    """Return the first refusal of several checks, None if all allow."""
    return next((each for each in refusals if each is not None), None)


def _not_dialled(call: Call[Any]) -> str | None:
    return None if call.conn.dialled else f"{call.conn} was not dialled by this node"


def _short(actions: Iterable[Action]) -> str:
    return "/".join(_LETTERS[each] for each in actions)
