"""`rmqkit explain WORD`: what a code, an event, a remark, or a node of the running cluster means.

A word is tried as a code (its number, or its name in any case), then as an event of a log, as a
remark of a log or an error, and as a node. Codes, events and remarks need no cluster; their tables
are `explain/codes.toml`, `events.toml` and `remarks.toml`. A line of a log can have both an event
and a remark. A node is queried for its state (codes 26 and 28, and the route of its own
topic). From its answers follow the requests that it refuses now, and why.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from rmqkit.cli import output
from rmqkit.cli.cluster_lookup import Json, Namesrv, find_namesrv, local_cluster
from rmqkit.cli.complete import nodes
from rmqkit.cli.errors import Failed, Unreachable, UsageError
from rmqkit.cli.explain.codes import requests, responses
from rmqkit.errors import ClientError
from rmqkit.suggestions import suggest
from rmqkit.wire.codes import OwnRequestCode, RequestCode, ResponseCode

if TYPE_CHECKING:
    from rmqkit import Admin

app = typer.Typer(add_completion=False, rich_markup_mode=None)

Words = Annotated[
    list[str],
    typer.Argument(
        metavar="CODE|EVENT|REMARK|NODE",
        help="17, TOPIC_NOT_EXIST, an event or a line of a log, a message of an error,"
        " a broker's name, name:id or address, or nameserver.",
        autocompletion=nodes,
    ),
]

WRITE, READ = 2, 4
MASTER_ID = 0


@app.command()
def explain(words: Words, namesrv: Namesrv = None, json: Json = False) -> None:
    """Explain a code, an event or a line of a log, or a running node: causes, and what to do."""
    from rmqkit.cli.explain.events import find_event
    from rmqkit.cli.explain.remarks import find

    text = " ".join(words).strip()
    codes = codes_of(text)
    event = None if codes else find_event(text)
    is_name = event is not None and "=" not in text
    remarks = [] if codes or is_name else find(text)
    node = None if codes or event or remarks else explain_node(text, namesrv)
    if json:
        said: dict[str, Any] = {"asked": text, "codes": codes, "event": event._asdict() if event else None}
        output.document({**said, "remarks": [row._asdict() for row in remarks], "node": node})
        return
    for code in codes:
        print_code(code)
    if event is not None:
        print(f"{event.event.replace('{}', '...')} (event)\n  meaning  {event.meaning}")
    for row in remarks:
        print(row.text.replace("{}", "..."))
        print(f"  why  {row.cause}\n  do   {row.do}")
    if node is not None:
        print_node(node)


# --- codes


def codes_of(text: str) -> list[dict[str, Any]]:
    """Return the response code and the request code with that number or name. Raises UsageError."""
    name = text.upper().replace("-", "_").replace(" ", "_")
    number = int(text) if text.removeprefix("-").isdigit() else None
    found: list[dict[str, Any]] = []
    for answer, meaning in responses().items():
        if name == answer.name or number == answer:
            found.append(
                {"kind": "response", "code": int(answer), "name": answer.name, "meaning": meaning.meaning, "do": meaning.do}
            )
    for request, asks in requests().items():
        if name == request.name or number == request:
            found.append(
                {"kind": "request", "code": int(request), "name": request.name, "meaning": asks, **handled(request)}
            )
    if number is not None and not found:
        raise UsageError(f"{number} is neither a request nor a response code of RocketMQ 5.5")
    return found


def handled(request: RequestCode | OwnRequestCode) -> dict[str, Any]:
    """Return which kinds of rmqkit nodes answer a request."""
    from rmqkit.broker.node import HANDLERS as broker
    from rmqkit.client.peer_calls import PEER_CALLS as client
    from rmqkit.container.node import rows as container
    from rmqkit.controller.handlers import HANDLERS as controller
    from rmqkit.nameserver.handlers import HANDLERS as nameserver

    servers = {"broker": broker, "name server": nameserver, "controller": controller}
    tables = {**servers, "client": client, "container": container}
    return {"answered_by": [kind for kind, table in tables.items() if int(request) in table.rows]}


def print_code(code: dict[str, Any]) -> None:
    print(f"{code['code']} {code['name']} ({code['kind']})")
    if code["kind"] == "response":
        print(f"  why  {code['meaning']}\n  do   {code['do']}")
    else:
        by = ", ".join(code["answered_by"])
        print(f"  purpose   {code['meaning']}\n  here      {f'answered by: {by}' if by else 'no rmqkit node answers it'}")


# --- nodes


class BrokerSnapshot(NamedTuple):
    """The facts about a broker.

    `topic_perm` is the permission of the broker's own topic at the broker, `route_perm` the one in
    its route; each is None if it is unknown.
    """

    config: dict[str, str]
    facts: dict[str, str]
    topic_perm: int | None
    route_perm: int | None


class RefusalRule(NamedTuple):
    """Requests that a broker refuses if a condition holds."""

    refuses: str
    code: ResponseCode
    holds: Callable[[BrokerSnapshot], bool]
    why: Callable[[BrokerSnapshot], str]


def _is(key: str, value: str) -> Callable[[BrokerSnapshot], bool]:
    return lambda seen: seen.config.get(key, "").lower() == value


def _perm_lacks(bit: int) -> Callable[[BrokerSnapshot], bool]:
    return lambda seen: (
        seen.config.get("brokerPermission", "6").isdigit() and not _number(seen.config, "brokerPermission", 6) & bit
    )


def _number(table: Mapping[str, str], key: str, default: float) -> int:
    try:
        return int(float(table.get(key, default)))
    except ValueError:
        return int(default)


def _ratio(seen: BrokerSnapshot) -> float:
    try:
        return float(seen.facts.get("commitLogDiskRatio", "0"))
    except ValueError:
        return 0.0


def _ours(seen: BrokerSnapshot) -> bool:
    return "plugins" in seen.config


A = ResponseCode
RULES: tuple[RefusalRule, ...] = (
    RefusalRule(
        "all requests of clients",
        A.SERVICE_NOT_AVAILABLE,
        lambda seen: seen.facts.get("roleOnline", "online") != "online",
        lambda seen: f"it is {seen.facts['roleOnline']}: {seen.facts.get('roleWhy', '')}",
    ),
    RefusalRule(
        "queue locks",
        A.SERVICE_NOT_AVAILABLE,
        lambda seen: seen.facts.get("role") == "slave",
        lambda seen: "its master or the acting master grants them",
    ),
    RefusalRule(
        "every message",
        A.SERVICE_NOT_AVAILABLE,
        lambda seen: seen.facts.get("brokerActive") == "false",
        lambda seen: (
            "it reports that it is not active: it is shutting down or starting, or its store has failed (see its log)"
        ),
    ),
    RefusalRule("every message", A.NO_PERMISSION, _perm_lacks(WRITE), lambda seen: "brokerPermission lacks 2 (write)"),
    RefusalRule("every pull", A.NO_PERMISSION, _perm_lacks(READ), lambda seen: "brokerPermission lacks 4 (read)"),
    RefusalRule(
        "every message",
        A.SERVICE_NOT_AVAILABLE,
        _is("brokerRole", "slave"),
        lambda seen: "it is a slave: it accepts messages only from its master",
    ),
    RefusalRule(
        "every message",
        A.SYSTEM_ERROR,
        lambda seen: _number(seen.facts, "replicationWanted", 1) > _number(seen.facts, "replicationInSync", 1) > 0,
        lambda seen: "fewer brokers of its group are in sync than a put needs",
    ),
    RefusalRule(
        "every message",
        A.SERVICE_NOT_AVAILABLE,
        lambda seen: _ratio(seen) > _number(seen.config, "diskSpaceWarningLevelRatio", 90) / 100,
        lambda seen: f"its disk is {_ratio(seen):.0%} full (diskSpaceWarningLevelRatio)",
    ),
    RefusalRule(
        "messages: clients do not send them to it",
        A.NO_PERMISSION,
        lambda seen: (
            seen.route_perm is not None
            and bool((seen.topic_perm or 0) & WRITE)
            and not seen.route_perm & WRITE
            and not _is("brokerRole", "slave")(seen)  # a slave refuses them anyway, and its master may only be down
        ),
        lambda seen: "name servers show its topics as read-only; `rmqkit broker add-write-perm` makes them writable",
    ),
    RefusalRule(
        "messages: clients do not find it",
        A.TOPIC_NOT_EXIST,
        lambda seen: seen.topic_perm is not None and seen.route_perm is None,
        lambda seen: "name servers have no route to it: it is not registered",
    ),
    RefusalRule(
        "messages to unknown topics",
        A.TOPIC_NOT_EXIST,
        _is("autoCreateTopicEnable", "false"),
        lambda seen: "autoCreateTopicEnable=false: `rmqkit topic create`",
    ),
    RefusalRule(
        "consumers of unknown groups",
        A.SUBSCRIPTION_GROUP_NOT_EXIST,
        _is("autoCreateSubscriptionGroup", "false"),
        lambda seen: "autoCreateSubscriptionGroup=false: `rmqkit group create`",
    ),
    RefusalRule(
        "SQL92 filters",
        A.SYSTEM_ERROR,
        _is("enablePropertyFilter", "false"),
        lambda seen: "enablePropertyFilter=false",
    ),
    RefusalRule(
        "transactional messages",
        A.NO_PERMISSION,
        _is("rejectTransactionMessage", "true"),
        lambda seen: "rejectTransactionMessage=true",
    ),
    RefusalRule(
        "messages with an exact delivery time (delay levels work)",
        A.SYSTEM_ERROR,
        _is("timerWheelEnable", "false"),
        lambda seen: "timerWheelEnable=false",
    ),
    RefusalRule(
        "larger messages",
        A.MESSAGE_ILLEGAL,
        lambda seen: "maxMessageSize" in seen.config,
        lambda seen: f"maxMessageSize={seen.config['maxMessageSize']} bytes",
    ),
)


def explain_node(word: str, namesrv: str | None) -> dict[str, Any]:
    """Return what is known about a node.

    Raises UsageError for an unknown word, Failed if the broker's group is known but this broker is
    not registered.
    """
    if " " in word:
        raise UsageError(f"{word!r} is neither a code nor a known text{_near(word)}")
    local = local_node(word, namesrv)
    if local is not None and local["state"] != "up":
        return {"node": word, "kind": local["kind"], "state": local["state"], "refuses": [_down(local)]}
    if local is not None and local["kind"] == "controller":
        from rmqkit.cli.explain import elections

        return elections.controller(local)
    from rmqkit.cli.admin_session import NAMESERVERS, admin_of, name_servers_named
    from rmqkit.client.admin.admin import find_broker

    try:
        addresses = find_namesrv(namesrv)
    except Unreachable:
        if hint := _near(word):
            raise UsageError(f"{word} is neither a code nor a known text{hint}") from None
        raise
    servers = name_servers_named(word, addresses)
    with admin_of(";".join(servers) or addresses) as admin:
        if servers:
            return name_server(admin, "nameserver" if word in NAMESERVERS else servers[0])
        if local is not None:
            return {**broker(admin, word, local["address"]), "instead": local["instead"]}
        groups = admin.cluster_info().broker_addr_table
        address, instead = word, ""
        if word in groups and MASTER_ID not in (members := groups[word].broker_addrs):
            address = f"{word}:{min(members)}"
            instead = f"the master of {word} is not registered: this is {address}"
        try:
            admin.broker_address(address)
        except ClientError as error:
            if find_broker(word, groups):
                raise Failed(str(error)) from None
            known = ", ".join(sorted(groups)) or "none"
            hint = suggest(word, groups) or _near(word) or f"; brokers: {known}"
            raise UsageError(f"{word} is not a code, a known text, or a node{hint}") from None
        return {**broker(admin, word, address), "instead": instead}


def _near(word: str) -> str:
    from rmqkit.cli.explain.events import events

    names = [code.name for codes in (responses(), requests()) for code in codes]
    return suggest(word, [*names, *(row.event for row in events())])


def local_node(word: str, namesrv: str | None) -> dict[str, Any] | None:
    """Return the node with that name in the local cluster, with its state; None if it is unknown.

    The name of a group means its first node that is up. `instead` says why that is not the master.
    """
    from rmqkit.cli.admin_session import NAMESERVERS
    from rmqkit.cluster import ClusterError
    from rmqkit.cluster.health.status import document

    try:
        cluster = local_cluster(namesrv)
        rows = document(cluster)["nodes"] if cluster is not None else []
    except ClusterError:
        return None
    nameservers = [row for row in rows if row["kind"] == "nameserver"]
    if word in NAMESERVERS and len(nameservers) == 1:
        word = nameservers[0]["node"]
    group = [row for row in rows if row.get("broker_name") == word]
    group.sort(key=lambda row: (row["election"] or {}).get("state") != "master")
    instead = ""
    if group:
        row = next((row for row in group if row["state"] == "up"), group[0])
        if row is not group[0] and not row["election"]:
            instead = f"{group[0]['node']}, the master of {word}, is {group[0]['state']}: this is {row['node']}"
    else:
        names = [(row, (row["node"], row["address"], f"{row.get('broker_name')}:{row.get('broker_id')}")) for row in rows]
        row = next((row for row, texts in names if word in texts), None)
    if row is None:
        return None
    name = "" if cluster is None or cluster.name == "default" else f" {cluster.name}"
    return {**row, "named": name, "instead": instead}


def _down(local: dict[str, Any]) -> dict[str, Any]:
    name = local["named"]
    if local["cut_off"]:
        why = f"a drill has isolated it: `rmqkit cluster resume{name}` if that drill no longer runs"
        return {"what": "everything", "code": None, "why": why}
    by_state = {
        "paused": f"a signal has paused it: `rmqkit cluster resume{name}`",
        "silent": f"it runs but does not answer: it starts, recovers, or is overloaded (`rmqkit cluster logs{name}`)",
        "down": f"it is down: `rmqkit cluster start{name}`",
        "died": f"it ended by itself: `rmqkit cluster logs{name}`, then `rmqkit cluster start{name}`",
    }
    return {"what": "everything", "code": None, "why": by_state.get(local["state"], local["state"])}


def broker(admin: "Admin", word: str, address: str) -> dict[str, Any]:
    config = admin.broker_config(address)
    facts = admin.broker_runtime(address)
    name = config.get("brokerName", "")
    own = admin.topic_config(name, address)
    seen = BrokerSnapshot(config, facts, own.perm if own else None, _route_perm(admin, name))
    from rmqkit.cli.explain import elections, replicas, roles
    from rmqkit.cli.nodes.brokers import readable
    from rmqkit.cluster.health.elections import election_of
    from rmqkit.cluster.health.replicas import replication_of
    from rmqkit.cluster.health.roles import role_of

    standing, election = role_of(facts), election_of(facts)
    group = elections.known_of(admin, config, name) if election is not None else None
    is_online = standing is None or standing.is_online
    return {
        "node": word,
        "kind": "broker",
        "state": "up",
        "broker_name": name,
        "broker_id": config.get("brokerId"),
        "role": config.get("brokerRole"),
        "flush": config.get("flushDiskType"),
        "address": str(admin.broker_address(address)),
        "facts": dict(readable(facts)),
        "election": elections.as_document(election, group, is_online=is_online),
        "standing": roles.as_document(standing, config),
        "replication": replicas.as_document(replication_of(facts)),
        "refuses": [
            {"what": rule.refuses, "code": int(rule.code), "why": rule.why(seen)} for rule in RULES if rule.holds(seen)
        ],
    }


def _route_perm(admin: "Admin", name: str) -> int | None:
    try:
        found = [data.perm for data in admin.route(name).queue_datas if data.broker_name == name]
    except ClientError:
        return None
    return found[0] if found else None


def name_server(admin: "Admin", name: str) -> dict[str, Any]:
    """Return the facts about name servers. Raises PeerUnreachable if one does not answer."""
    addresses = list(admin.nameserver_config())
    info = admin.cluster_info()
    count = sum(len(group.broker_addrs) for group in info.broker_addr_table.values())
    facts = {
        "brokers": str(count),
        "topics": str(len(admin.topics())),
        "clusters": ", ".join(sorted(info.cluster_addr_table)),
    }
    refuses = [] if count else [{"what": "every route", "code": int(A.TOPIC_NOT_EXIST), "why": "no broker has registered"}]
    return {
        "node": name,
        "kind": "nameserver",
        "state": "up",
        "address": ", ".join(addresses),
        "facts": facts,
        "refuses": refuses,
    }


def print_node(node: dict[str, Any]) -> None:
    what = "name server" if node["kind"] == "nameserver" else node["kind"]
    where = f" at {node['address']}" if node.get("address") else ""
    print(f"{node['node']} is a {what}{where}, {node['state']}")
    if node.get("instead"):
        print(f"  {node['instead']}")
    if "role" in node:
        print(f"  {node['broker_name']}, id {node['broker_id']}, {node['role']}, {node['flush']}")
    for name, value in node.get("facts", {}).items():
        print(f"  {name:15} {value}")
    for said in [
        each for part in ("election", "standing", "replication") for each in (node.get(part) or {}).get("says", ())
    ]:
        print(said["what"])
        if said["do"]:
            print(f"  do   {said['do']}")
    if not node["refuses"]:
        print("it refuses no requests, as far as its settings and facts show")
        return
    print("it refuses:")
    for each in node["refuses"]:
        code = f" ({each['code']} {A(each['code']).name})" if each["code"] is not None else ""
        print(f"  {each['what']}: {each['why']}{code}")
