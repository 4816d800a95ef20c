"""`rmqkit acl`: what users may do.

A user has at most one rule for a resource and policy; brokers replace a rule by a new one for an
equal resource. `allow` and `deny` therefore add their actions to a rule that differs in nothing
else, and say which rule they replace otherwise.

`explain` evaluates the rules as a broker does, with the same function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqkit.cli import output
from rmqkit.cli.access.masters import Broker, User, asked_of_each, change_each, masters_of, readers_of, user_at, where, word
from rmqkit.cli.admin_session import admin_of
from rmqkit.cli.cluster_lookup import Json, Namesrv
from rmqkit.cli.commands import group
from rmqkit.cli.errors import Failed, UsageError
from rmqkit.wire.topic_names import RETRY_PREFIX

if TYPE_CHECKING:
    from rmqkit import Admin
    from rmqkit.access.decision import AccessDecision
    from rmqkit.access.model import Action, Decision, Policies, PolicyEntry, PolicyType, Resource

app = group("acl")

RULE_COLUMNS: output.Columns = {
    "user": "user",
    "policy": "policy",
    "decision": "decision",
    "actions": lambda row: ", ".join(row["actions"]),
    "resource": "resource",
    "from": lambda row: ", ".join(row["sources"]) or "anywhere",
    "at": "at",
}

Actions = Annotated[
    str,
    typer.Argument(metavar="ACTIONS", help="Pub, Sub, Create, Update, Delete, Get, List or All, separated by commas."),
]
ResourceText = Annotated[
    str,
    typer.Argument(metavar="RESOURCE", help="Topic:NAME, Group:NAME, Cluster:NAME; PREFIX* and * instead of a name; or *."),
]
Sources = Annotated[
    list[str] | None,
    typer.Option("--from", metavar="ADDRESS", help="Only from this address or CIDR range; may be repeated."),
]
Default = Annotated[
    bool, typer.Option("--default", help="A default rule: it counts only where no custom rule of the user applies.")
]


@app.command("allow")
def allow(
    user: User,
    actions: Actions,
    resource: ResourceText,
    sources: Sources = None,
    default: Default = False,
    broker: Broker = None,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Allow a user actions on a resource, at every master.

    An application that sends needs `Pub Topic:NAME`; one that consumes needs `Sub Topic:NAME` and
    `Sub Group:NAME`.
    """
    from rmqkit.access.model import Decision

    _put(user, actions, resource, Decision.ALLOW, sources or [], default, broker, namesrv, json)


@app.command("deny")
def deny(
    user: User,
    actions: Actions,
    resource: ResourceText,
    sources: Sources = None,
    default: Default = False,
    broker: Broker = None,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Deny a user actions on a resource, at every master.

    Brokers refuse every request that no rule allows. Use a denial to make an exception from a wider
    permission.
    """
    from rmqkit.access.model import Decision

    _put(user, actions, resource, Decision.DENY, sources or [], default, broker, namesrv, json)


@app.command("list")
def list_rules(
    user: Annotated[str, typer.Argument(metavar="[USER]", help="Only rules of users with this text in the name.")] = "",
    resource: Annotated[str, typer.Option("--resource", help="Only rules whose resource contains this text.")] = "",
    broker: Broker = None,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """List the rules, and at which masters each one exists."""
    with admin_of(namesrv) as admin:
        found = asked_of_each(readers_of(admin, broker), lambda each: admin.all_rules(each, user, resource))
    output.report(rule_rows(found), RULE_COLUMNS, as_json=json, none="no such rule")


@app.command("revoke")
def revoke(
    user: User,
    resource: Annotated[str, typer.Argument(metavar="[RESOURCE]", help="The resource, as `acl list` shows it.")] = "",
    every: Annotated[bool, typer.Option("--all", help="Delete all rules of the user.")] = False,
    default: Default = False,
    broker: Broker = None,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Delete a rule of a user, or all of them, at every master."""
    from rmqkit.access.model import PolicyType

    if bool(resource) == every:
        raise UsageError("name the resource of the rule, or use --all for all rules of the user")
    wanted = _resource(resource) if resource else None
    policy = PolicyType.DEFAULT if default else PolicyType.CUSTOM if wanted else None
    with admin_of(namesrv) as admin:
        found = asked_of_each(masters_of(admin, broker), lambda each: admin.rules(each, user))
        there = [each for each, policies in found.items() if _has(policies, wanted, policy)]
        kind = f"{policy.lower()} " if policy else ""
        what = f"{kind}rule for {wanted}" if wanted else f"{kind}rules"
        if not there:
            raise Failed(f"user {user} has no {what} at {', '.join(found)}; see `rmqkit acl list {user}`")
        text = str(wanted) if wanted else None
        change_each(
            there,
            lambda each: admin.delete_rules(user, text, policy=policy, broker=each),
            {"user": user, "resource": text, "policy": policy},
            f"deleted the {what} of user {user}",
            as_json=json,
        )


@app.command("explain")
def explain(
    user: User,
    action: Annotated[str, typer.Argument(metavar="ACTION", help="Pub, Sub, Create, Update, Delete, Get or List.")],
    resource: ResourceText,
    source: Annotated[str | None, typer.Option("--from", metavar="ADDRESS", help="The client's address.")] = None,
    broker: Broker = None,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Explain whether a user may do something, which rule decides, and why."""
    from rmqkit.access.model import Action, read_source

    asked, wanted = word(Action, action, "action"), _asked(resource)
    address = read_source(source) if source is not None else None
    if source is not None and address is None:
        raise UsageError(f"--from {source} is no IP address")
    with admin_of(namesrv) as admin:
        verdicts = asked_of_each(
            readers_of(admin, broker), lambda each: _verdict(admin, each, user, asked, wanted, address)
        )
    rows = _verdict_rows(verdicts)
    if json:
        question = {"user": user, "action": str(asked), "resource": str(wanted), "from": source}
        output.document({**question, "verdicts": rows})
        return
    for row in rows:
        may = "may" if row["allowed"] else "may not"
        at = "" if row["at"] == "all" else f" (at {row['at']})"
        print(f"user {user} {may} {asked} {wanted}{at}: {row['why']}")


def rule_rows(found: dict[str, dict[str, Policies]]) -> list[dict[str, Any]]:
    """Return a row for each rule; several if the brokers that have it differ."""
    by_rule: dict[tuple[str, PolicyType, PolicyEntry], list[str]] = {}
    for broker, users in found.items():
        for user, policies in users.items():
            for policy, entries in policies.items():
                for entry in entries:
                    by_rule.setdefault((user, policy, entry), []).append(broker)
    every = list(found)
    rows = []
    for (user, policy, entry), brokers in by_rule.items():
        info = entry.info()
        rows.append(
            {
                "user": user,
                "policy": str(policy),
                "decision": info.decision,
                "actions": info.actions,
                "resource": info.resource,
                "sources": info.source_ips or [],
                "brokers": brokers,
                "at": where(brokers, every),
            }
        )
    return sorted(rows, key=lambda row: (row["user"], row["policy"], row["resource"]))


def _put(
    user: str,
    actions: str,
    resource: str,
    decision: Decision,
    sources: list[str],
    default: bool,
    broker: str | None,
    namesrv: str | None,
    json: bool,
) -> None:
    from rmqkit.access.model import PolicyType

    rule = _rule(actions, resource, decision, sources)
    policy = PolicyType.DEFAULT if default else PolicyType.CUSTOM
    with admin_of(namesrv) as admin:
        brokers = masters_of(admin, broker)
        users = asked_of_each(brokers, lambda each: user_at(admin, each, user))
        missing = [each for each, info in users.items() if info is None]
        if missing:
            raise Failed(f"there is no user {user} at {', '.join(missing)}; `rmqkit user add {user}` adds it")
        found = asked_of_each(list(users), lambda each: admin.rules(each, user))
        rules = {each: _merged(rule, policies.get(policy, ())) for each, policies in found.items()}
        for each, (_, replaced) in rules.items():
            if replaced is not None:
                output.note(f"{each}: this replaces the rule {replaced!s}")
        change_each(
            list(rules),
            lambda each: admin.put_rules(user, [rules[each][0]], policy=policy, broker=each),
            {"user": user, "policy": str(policy), "rule": str(rules[next(iter(rules))][0])},
            f"user {user}: {rules[next(iter(rules))][0]!s}{' by default' if default else ''}",
            as_json=json,
        )


def _merged(rule: PolicyEntry, entries: tuple[PolicyEntry, ...]) -> tuple[PolicyEntry, PolicyEntry | None]:
    """Return the rule to write, and the one that it replaces and whose content is lost."""
    for each in entries:
        if each.resource == rule.resource:
            if (each.decision, each.sources) == (rule.decision, rule.sources):
                return rule._replace(actions=rule.actions | each.actions), None
            return rule, each
    return rule, None


def _rule(actions: str, resource: str, decision: Decision, sources: list[str]) -> PolicyEntry:
    """Return the rule of a command line. Raises UsageError."""
    from rmqkit.access.model import BadAccessText, PolicyEntry
    from rmqkit.wire.bodies.access import PolicyEntryInfo

    words = [each.strip() for each in actions.split(",") if each.strip()]
    info = PolicyEntryInfo(actions=words, resource=resource, decision=decision, source_ips=sources or None)
    try:
        return PolicyEntry.read(info)
    except BadAccessText as error:
        raise UsageError(str(error)) from None


def _resource(text: str) -> Resource:
    from rmqkit.access.model import BadAccessText, Resource

    try:
        return Resource.parse(text)
    except BadAccessText as error:
        raise UsageError(str(error)) from None


def _asked(text: str) -> Resource:
    """Return the resource that a broker checks: a retry topic means its group."""
    from rmqkit.access.model import ResourceType

    found = _resource(text)
    if found.type is ResourceType.TOPIC and found.name.startswith(RETRY_PREFIX):
        return found._replace(type=ResourceType.GROUP, name=found.name.removeprefix(RETRY_PREFIX))
    return found


def _has(policies: Policies, resource: Resource | None, policy: PolicyType | None) -> bool:
    entries = [each for kind, found in policies.items() if policy in (None, kind) for each in found]
    return bool(entries) if resource is None else any(each.resource == resource for each in entries)


def _verdict(admin: Admin, broker: str, user: str, action: Action, resource: Resource, source: Any) -> AccessDecision:
    from rmqkit.access.decision import AccessDecision, decide

    info = user_at(admin, broker, user)
    if info is None:
        return AccessDecision(False, "there is no such user")
    if (info.user_status or "").lower() == "disable":
        return AccessDecision(False, "the user is disabled")
    if (info.user_type or "").lower() == "super":
        return AccessDecision(True, "a super user may do everything")
    return decide(admin.rules(broker, user), resource, frozenset({action}), source)


def _verdict_rows(verdicts: dict[str, AccessDecision]) -> list[dict[str, Any]]:
    """Return a row for each verdict; several if the brokers differ."""
    by_verdict: dict[AccessDecision, list[str]] = {}
    for broker, verdict in verdicts.items():
        by_verdict.setdefault(verdict, []).append(broker)
    return [
        {
            "allowed": verdict.is_allowed,
            "why": _why(verdict),
            "rule": str(verdict.entry) if verdict.entry is not None else None,
            "policy": str(verdict.policy) if verdict.policy is not None else None,
            "brokers": brokers,
            "at": where(brokers, list(verdicts)),
        }
        for verdict, brokers in by_verdict.items()
    ]


def _why(verdict: AccessDecision) -> str:
    from rmqkit.access.decision import NO_MATCH
    from rmqkit.access.model import PolicyType

    if verdict.entry is not None:
        default = "default " if verdict.policy is PolicyType.DEFAULT else ""
        return f"the {default}rule `{verdict.entry!s}` decides"
    return "no rule applies, and what no rule allows is refused" if verdict.why == NO_MATCH else verdict.why
