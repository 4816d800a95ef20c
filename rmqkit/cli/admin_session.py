"""Shared by the commands that query brokers: an `Admin` for the cluster, lookups, and errors.

- `admin_of` opens the `Admin` of the cluster that a command means.
- `known_topic` and `check_group` turn an unknown name into an error that suggests the closest one.
- `node_named` and `name_servers_named` translate the names that users write into those of requests.
- `ask_each` and `end_with` query several nodes and report those that failed.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from rmqkit.cli import output
from rmqkit.cli.cluster_lookup import find_namesrv, local_cluster
from rmqkit.cli.errors import Failed, Unreachable, UsageError
from rmqkit.errors import BrokerError, ClientError, NoRoute, PeerUnreachable
from rmqkit.suggestions import suggest
from rmqkit.wire.codes import OwnRequestCode, ResponseCode
from rmqkit.wire.topic_names import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_PREFIX

if TYPE_CHECKING:
    from rmqkit import Admin, MessageQueue
    from rmqkit.cluster.layout.description import NodePlan

T = TypeVar("T")

#: queues that Apache's client asks for when its send creates a topic
QUEUES_OF_A_SEND = 4
OWN_CODES = frozenset(OwnRequestCode)
_NAMESRV_HINT = "; if that is a broker or a controller, correct --namesrv or NAMESRV_ADDR"
SYSTEM_PREFIXES = (RETRY_PREFIX, DLQ_PREFIX, SYSTEM_PREFIX.upper(), SYSTEM_PREFIX)


@contextlib.contextmanager
def admin_of(namesrv: str | None) -> Iterator[Admin]:
    """Open an Admin for the cluster that `find_namesrv` finds.

    Raises Failed, naming the request, if a node of another release does not support it.
    """
    addresses = find_namesrv(namesrv)
    from rmqkit import Admin

    with Admin(addresses) as admin:
        try:
            yield admin
        except BrokerError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            hint = _NAMESRV_HINT if error.address in addresses.split(";") else ""
            raise Failed(f"{error.address} does not know this request{_request_name(error.remark)}{hint}") from None


def _request_name(remark: str) -> str:
    """Return ": CODE NAME" for a remark such as "request type 314 not supported"."""
    from rmqkit.runtime.calls import code_name

    number = re.search(r"\d+", remark)
    if number is None:
        return f": {remark}" if remark else ""
    code = int(number[0])
    name = code_name(code)
    if code in OWN_CODES:
        return f": {code} {name}, which only brokers of rmqkit do"
    return f": {code}" if name == number[0] else f": {code} {name}"


def system_topics(admin: Admin) -> set[str]:
    """Return the topics that no user created, such as those named after clusters and brokers."""
    from rmqkit.wire.topic_names import SYSTEM_TOPICS

    info = admin.cluster_info()
    return {*SYSTEM_TOPICS, *info.cluster_addr_table, *info.broker_addr_table}


def is_system_topic(topic: str, fixed: set[str]) -> bool:
    return topic in fixed or topic.startswith(SYSTEM_PREFIXES) or topic.endswith("_REPLY_TOPIC")


@contextlib.contextmanager
def known_topic(admin: Admin, topic: str, advice: str = "") -> Iterator[None]:
    """Replace "no route" by an error that suggests the closest topic and ends with `advice`.

    Raises Failed for an unknown topic.
    """
    try:
        yield
    except (NoRoute, BrokerError) as error:
        if isinstance(error, BrokerError) and error.code != ResponseCode.TOPIC_NOT_EXIST:
            raise
        known = admin.topics()
        if topic in known:
            raise
        check_brokers(admin)
        raise Failed(f"there is no topic {topic}{suggest(topic, known)}{advice}") from None


def readable(topic: str, queues: Collection[MessageQueue]) -> Collection[MessageQueue]:
    """Return the queues of a topic. Raises Failed if no broker permits to read it."""
    if not queues:
        raise Failed(f"topic {topic} has no queue to read from: reading is not permitted; see `rmqkit topic perm {topic}`")
    return queues


def create_on_every_group(namesrv: str, topic: str) -> list[str]:
    """Create an unknown topic on every broker group that creates topics by a send.

    Return the names of the groups. Apache's client sends to only one group, and only that group
    creates the topic. If the master of that group then dies, the topic has no queue to write to.
    This does nothing for fewer than two groups or after an error: the send itself reports the
    error.
    """
    from rmqkit.client.routes import DEFAULT_TOPIC
    from rmqkit.wire.codes import PermName

    with contextlib.suppress(ClientError), admin_of(namesrv) as admin:
        try:
            admin.route(topic)
            return []
        except BrokerError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                return []
        route = admin.route(DEFAULT_TOPIC)
        masters = {data.broker_name for data in route.broker_datas if 0 in data.broker_addrs}
        groups = sorted(
            data.broker_name
            for data in route.queue_datas
            if data.perm & PermName.PERM_WRITE and data.broker_name in masters
        )
        if len(groups) > 1:
            for group in groups:
                admin.create_topic(topic, queue_nums=QUEUES_OF_A_SEND, broker=group)
            return groups
    return []


def groups_instead(admin: Admin, topic: str) -> list[str]:
    """Return the groups that could hold the topic, if all groups that hold it lack a master."""
    holders = {data.broker_name for data in admin.route(topic).queue_datas}
    masters = set(admin.masters())
    return [] if holders & masters else sorted(masters)


def check_group(admin: Any, name: str) -> None:
    """Raises Failed, with the closest name, for a group that no broker knows."""
    known = admin.groups()
    if name not in known and admin.consumer_connections(name) is None and not has_offsets(admin, name):
        check_brokers(admin)
        raise Failed(f"there is no group {name}{suggest(name, known)}")


def has_offsets(admin: Any, group: str) -> bool:
    """Return whether a group has offsets.

    A cloned group has no settings until its first member joins.
    """
    try:
        return bool(admin.topics_of_group(group))
    except BrokerError:  # Apache's before 5.0 do not know the request
        return False


NAMESERVER = "nameserver"
#: names for all name servers; `ns` is the selector of `cluster` commands
NAMESERVERS = (NAMESERVER, "ns")


def wire_broker(plan: NodePlan) -> str:
    """Return a broker's name in requests: `broker-a` is a master, `broker-a:1` its slave."""
    return f"{plan.broker_name}:{plan.broker_id}" if plan.broker_id else plan.broker_name


def node_named(name: str | None, namesrv: str | None) -> str | None:
    """Return the name that requests use for a node of `cluster status`: broker-a for broker-a-0,
    the address if controllers elect its master, since its id on the wire then changes.

    Return any other text unchanged. Raises UsageError for a name server, with the names of the
    local cluster's name servers.
    """
    from rmqkit.cluster import ClusterError

    with contextlib.suppress(ClusterError):
        cluster = local_cluster(namesrv)
        if name is None or cluster is None:
            return name
        plans = cluster.description.nodes()
        for plan in plans:
            if plan.node == name and plan.is_elected:
                return next((each.address for each in cluster.targets() if each.plan.node == name), name)
            if plan.node == name and plan.is_broker:
                return wire_broker(plan)
        if name.startswith("ns-"):
            nameservers = ", ".join(plan.node for plan in plans if plan.is_nameserver)
            raise UsageError(f"{name} is no broker; the name servers of cluster {cluster.name} are {nameservers}")
    return name


def name_servers_named(name: str | None, namesrv: str | None) -> list[str]:
    """Return the addresses of the name servers that a node's name means, [] if it means none."""
    from rmqkit.cluster import ClusterError

    addresses = find_namesrv(namesrv).split(";")
    if name in NAMESERVERS:
        return addresses
    with contextlib.suppress(ClusterError):
        cluster = local_cluster(namesrv)
        for target in cluster.targets() if cluster is not None else ():
            if target.plan.node == name and target.plan.is_nameserver:
                return [target.address]
    return [name] if name in addresses else []


def check_brokers(admin: Any) -> None:
    """Raises Unreachable if no broker is registered: name servers then know no topic."""
    if not admin.cluster_info().broker_addr_table:
        raise Unreachable("no broker is registered at the name servers; start one, here with `rmqkit cluster start`")


def brokers_of(admin: Any, node: str | None) -> list[str]:
    """Return the given broker, or every registered one: `name` is a master, `name:id` a slave.

    Raises Unreachable if no broker is registered.
    """
    if node is not None:
        return [node]
    check_brokers(admin)
    groups = admin.cluster_info().broker_addr_table
    return [
        f"{name}:{broker_id}" if broker_id else name
        for name in sorted(groups)
        for broker_id in sorted(groups[name].broker_addrs)
    ]


def absent_brokers(namesrv: str | None, present: Iterable[str]) -> dict[str, ClientError]:
    """Return an error for each broker of the local cluster that is not registered."""
    from rmqkit.cluster import ClusterError

    with contextlib.suppress(ClusterError):
        cluster = local_cluster(namesrv)
        plans = cluster.description.nodes() if cluster is not None else []
        names = {wire_broker(plan): plan.node for plan in plans if plan.is_broker and not plan.is_elected}
        return {
            name: ClientError(f"{node} is not registered at the name servers; see `rmqkit explain {node}`")
            for name, node in names.items()
            if name not in set(present)
        }
    return {}


def ask_each(nodes: Iterable[str], ask: Callable[[str], T]) -> tuple[dict[str, T], dict[str, ClientError]]:
    """Return the answers of the nodes, and the errors of the nodes that did not answer."""
    answers: dict[str, T] = {}
    errors: dict[str, ClientError] = {}
    for node in nodes:
        try:
            answers[node] = ask(node)
        except ClientError as error:
            errors[node] = error
    return answers, errors


def end_with(answers: Mapping[str, Any], errors: Mapping[str, ClientError], what: str) -> None:
    """Report the nodes with errors; `what` says what failed there, such as "no answer".

    Raises the error of a single node, Unreachable if none of several could be reached, else Failed.
    """
    if len(errors) == 1 and not answers:
        raise next(iter(errors.values()))
    for node, error in errors.items():
        output.note(f"{node}: {what}: {error}")
    if errors and not answers and all(isinstance(error, PeerUnreachable) for error in errors.values()):
        raise Unreachable(f"{what} at {', '.join(errors)}")
    if errors:
        raise Failed(f"{what} at {', '.join(errors)}")


def choose_queue(queues: list[Any], text: str) -> Any:
    """Return the queue that `ID` or `BROKER:ID` names.

    Raises UsageError if it is unknown or ambiguous.
    """
    from rmqkit.client.admin.admin import find_broker

    broker, _colon, number = text.rpartition(":")
    broker, _id = find_broker(broker, {each.broker_name for each in queues}) or (broker, 0)
    found = [each for each in queues if str(each.queue_id) == number and broker in ("", each.broker_name)]
    if len(found) == 1:
        return found[0]
    names = ", ".join(f"{each.broker_name}:{each.queue_id}" for each in (found or queues))
    if broker and all(each.broker_name != broker for each in queues):
        why = f"{broker} has no such queue now (see `rmqkit topic route TOPIC`); "
    else:
        why = ""
    raise UsageError(f"queue {text}: {why}{'choose one of' if found else 'there are'} {names}")


def queue_fields(queue: Any) -> dict[str, Any]:
    """Return the fields of a queue in JSON output."""
    return {"topic": queue.topic, "broker_name": queue.broker_name, "queue_id": queue.queue_id}
