"""Checks whether nodes are ready, from outside, as a client sees them.

A node listens before it has recovered, so an open port proves nothing.

- A name server is ready once it answers.
- A master is ready once a message to its own topic (which has the name of its group) is stored, a
  pull returns that message, and every name server routes that topic to it. If its settings forbid
  that send, it is ready once the name servers know it.
- A controller is ready once it knows who leads.
- A broker that controllers elect is ready as a master, or as a slave once it is in sync as well.
- A slave is ready once the name servers know it, it follows its master, and the master has a report
  from it. If no master runs, the name servers suffice. A slave that will not follow without help
  (`replicas.STUCK`) counts as ready, and is reported as stuck.
"""

import time
from collections.abc import Callable, Container, Mapping, Sequence
from typing import NamedTuple

from rmqkit.cluster.errors import ClusterError
from rmqkit.cluster.health.caller import Caller, NoAnswer, checked
from rmqkit.cluster.health.elections import BrokerElection, controller_of, election_of
from rmqkit.cluster.health.replicas import ReplicaReport, replication_of
from rmqkit.cluster.health.roles import RoleStatus, role_of
from rmqkit.cluster.layout.description import NodePlan
from rmqkit.errors import RemoteProtocolError
from rmqkit.wire.bodies import ClusterInfo, KVTable, TopicList, TopicRoute
from rmqkit.wire.codes import PullSysFlag, RequestCode, ResponseCode
from rmqkit.wire.properties_text import decode as decode_properties
from rmqkit.wire.schema import from_ext
from rmqkit.wire.schemas.nameserver import GetRouteInfoRequest
from rmqkit.wire.schemas.pull import PullMessageRequest
from rmqkit.wire.schemas.send import SendMessageRequestV2, SendMessageResponse

PRODUCER_GROUP = "SELF_TEST_P_GROUP"
CONSUMER_GROUP = "SELF_TEST_C_GROUP"
#: answers of a working broker whose settings forbid the test message
NOT_WANTED = (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.NO_PERMISSION)
#: answers of a broker that has stored the message, though maybe not flushed or copied it in time
STORED = (
    ResponseCode.SUCCESS,
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
)
#: Apache's remark on a send that a master refuses because too few slaves are in sync
TOO_FEW_IN_SYNC = "in-sync replicas not enough"
#: timeout of all requests to one node in one round; above `slaveTimeout`, which a send may wait
ASK_S = 3.0
#: how long the test pull may wait for the test message
PULL_WAIT_MS = 1000
PAUSE_S = 0.01
PAUSE_MAX_S = 0.1
TEST_BODY = b"is it ready?"


class Target(NamedTuple):
    """A node and its address; `host` is the one that clients are given."""

    plan: NodePlan
    host: str
    port: int
    #: the file with the TLS settings of the cluster's clients; "" without
    tls: str = ""
    #: the file with the keys of the cluster's operator; "" without access control
    keys: str = ""

    def call(self, deadline_s: float) -> Caller:
        """Return a connection to the node. Raises NoAnswer."""
        return Caller(self.host, self.port, deadline_s, tls=self.tls or None, keys=self.keys)

    @property
    def address(self) -> str:
        return self._at(self.port)

    @property
    def ha_address(self) -> str:
        return self._at(self.port + 1)

    def _at(self, port: int) -> str:
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"


class NodeStatus(NamedTuple):
    """The status that a node reports. All fields but `settings` are set for brokers only.

    `role` is the configured `brokerRole`, `offset_max` the end of the commit log in bytes,
    `standing` the current role.
    """

    role: str = ""
    offset_max: int | None = None
    replication: ReplicaReport | None = None
    standing: RoleStatus | None = None
    settings: Mapping[str, str] = {}
    election: BrokerElection | None = None

    @property
    def acting_enabled(self) -> bool | None:
        """Whether a broker's group may have an acting master; None if it lacks the setting."""
        return _flag(self.settings, "enableSlaveActingMaster")

    @property
    def supports_acting(self) -> bool | None:
        """Whether a name server shows acting masters; None if it lacks the setting."""
        return _flag(self.settings, "supportActingMaster")


class TooFewInSync(NoAnswer):
    """The master refuses messages now, because too few slaves are in sync."""


class NodeDied(Exception):
    """The process of a node is gone. `log_from` is the size of its log when it was started."""

    def __init__(self, node: str, log_from: int) -> None:
        super().__init__(node)
        self.node = node
        self.log_from = log_from


class OtherNodes(NamedTuple):
    """The other nodes that the readiness of a node depends on.

    `answering` says whether a node, by name, runs and is not paused.
    """

    nameservers: Sequence[Target]
    brokers: Mapping[str, Target]
    answering: Callable[[str], bool]
    #: reason by slave that will not follow without help
    stuck: dict[str, str]

    def slaves_to_wait_for(self, master: NodePlan) -> list[str]:
        """Return the running slaves of a master that follow it or may still do so."""
        return [
            node
            for node, target in self.brokers.items()
            if target.plan.is_slave
            and target.plan.master == master.node
            and node not in self.stuck
            and self.answering(node)
        ]


def wait_ready(
    targets: Sequence[Target],
    everybody: Sequence[Target],
    alive: Callable[[str], bool],
    answering: Callable[[str], bool],
    deadline_s: float,
    log_from: Mapping[str, int],
    tell: Callable[[str], None],
) -> dict[str, str]:
    """Wait until every target is ready, and all running slaves of every master among them.

    `everybody` are all nodes of the cluster that have an address. `alive` says whether a node has a
    process, `answering` whether it has one that is not paused. `tell` is called after each round
    with the nodes that are not ready and the reason of the first.

    Return the slaves that run but will not follow without help, with the reason. Raises NodeDied if
    a target has no process, or ClusterError on timeout, with the reason of the first node.
    """
    around = OtherNodes(
        [target for target in everybody if target.plan.is_nameserver and answering(target.plan.node)],
        {target.plan.node: target for target in everybody if target.plan.is_broker},
        answering,
        {},
    )
    own = {target.plan.node for target in targets}
    waiting = [*targets, *(each for each in everybody if _follows_one_of(own, each.plan) and answering(each.plan.node))]
    pause_s = PAUSE_S
    while waiting:
        for target in targets:
            if not alive(target.plan.node):
                raise NodeDied(target.plan.node, log_from.get(target.plan.node, 0))
        lacks = {}
        for target in waiting:
            try:
                _check(target, around, min(deadline_s, time.monotonic() + ASK_S))
            except (NoAnswer, RemoteProtocolError) as error:
                lacks[target.plan.node] = str(error)
        waiting = [each for each in waiting if each.plan.node in lacks and (each in targets or answering(each.plan.node))]
        if waiting:
            node = waiting[0].plan.node
            if time.monotonic() > deadline_s:
                raise ClusterError(f"{node} is not ready in time: {lacks[node]}")
            tell(f"waiting for {', '.join(each.plan.node for each in waiting)}: {lacks[node]}")
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, PAUSE_MAX_S)
    return around.stuck


def _follows_one_of(masters: Container[str], plan: NodePlan) -> bool:
    return plan.is_slave and plan.node not in masters and plan.master in masters


def _check(target: Target, around: OtherNodes, deadline_s: float) -> None:
    """Check that a node is ready. Raises NoAnswer with the reason if it is not."""
    if target.plan.is_controller:
        with target.call(deadline_s) as node:
            if not controller_of(node).leader:
                raise NoAnswer("the controllers have no leader yet; a group's first start needs all of them")
    elif target.plan.is_nameserver:
        with target.call(deadline_s) as node:
            node.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
    elif target.plan.is_elected:
        _check_elected(target, around, deadline_s)
    elif target.plan.is_slave:
        _check_slave(target, around, deadline_s)
    else:
        _check_master(target, around, deadline_s)


def _check_master(target: Target, around: OtherNodes, deadline_s: float) -> None:
    topic = target.plan.broker_name
    with target.call(deadline_s) as node:
        try:
            has_topic = _send_and_pull(node, topic, time.time_ns() // 1_000_000)
        except TooFewInSync:
            # The refusal is correct. If there are no slaves to wait for, the master is ready.
            if around.slaves_to_wait_for(target.plan):
                raise
            has_topic = False
    _check_known(target, around.nameservers, topic if has_topic else "", deadline_s)


def _check_elected(target: Target, around: OtherNodes, deadline_s: float) -> None:
    with target.call(deadline_s) as node:
        facts = KVTable.decode(node.ask(RequestCode.GET_BROKER_RUNTIME_INFO).body).table
    said, standing, replication = election_of(facts), role_of(facts), replication_of(facts)
    if said is None or standing is None or replication is None:
        raise NoAnswer("it is not in controller mode")
    if said.is_master and standing.is_online:
        _check_master(target, around, deadline_s)
        return
    if not said.is_slave:
        raise NoAnswer(f"it has no role yet, its election is in state {said.state}{': ' if said.why else ''}{said.why}")
    around.stuck.pop(target.plan.node, None)
    if replication.is_stuck:
        around.stuck[target.plan.node] = f"{replication.state}: {replication.why}"
        return
    if not replication.follows:
        raise NoAnswer(f"it does not follow its master yet: {replication.why or replication.state}")
    master = _elected_master(target.plan.broker_name, around, deadline_s)
    if master is None:
        raise NoAnswer(f"no member of {target.plan.broker_name} is master")
    if said.broker_id not in master.in_sync:
        raise NoAnswer("it is not in the set of in-sync replicas yet")
    _check_known(target, around.nameservers, "", deadline_s)


def _elected_master(name: str, around: OtherNodes, deadline_s: float) -> BrokerElection | None:
    """Return the report of a group's master, None if no member that answers is master."""
    found: list[BrokerElection] = []
    for node, target in around.brokers.items():
        if target.plan.broker_name == name and around.answering(node):
            try:
                with target.call(deadline_s) as asked:
                    facts = KVTable.decode(asked.ask(RequestCode.GET_BROKER_RUNTIME_INFO).body).table
            except (NoAnswer, RemoteProtocolError):
                continue
            said = election_of(facts)
            found += [said] if said is not None and said.is_master else []
    return max(found, key=lambda said: said.epoch, default=None)


def _check_slave(target: Target, around: OtherNodes, deadline_s: float) -> None:
    said = _ask_replication(target, deadline_s)
    around.stuck.pop(target.plan.node, None)
    has_master = around.answering(target.plan.master)
    if said is not None and (said.is_stuck if has_master else said.kept_away):
        around.stuck[target.plan.node] = f"{said.state}: {said.why}" if has_master else said.kept_away
        return
    _check_known(target, around.nameservers, "", deadline_s)
    master = around.brokers.get(target.plan.master)
    if said is None or master is None or not has_master:
        return
    if not said.follows:
        raise NoAnswer(f"it does not follow its master yet: {said.why or said.state}")
    told = _ask_replication(master, deadline_s)
    if told is not None and not told.hears(target.plan.broker_id):
        raise NoAnswer("its master has no report from it yet")


def _ask_replication(target: Target, deadline_s: float) -> ReplicaReport | None:
    with target.call(deadline_s) as node:
        return replication_of(KVTable.decode(node.ask(RequestCode.GET_BROKER_RUNTIME_INFO).body).table)


def _check_known(target: Target, nameservers: Sequence[Target], topic: str, deadline_s: float) -> None:
    """Check that every name server knows a node and, if `topic` is given, routes it to the node.

    Raises NoAnswer if one does not.
    """
    for nameserver in nameservers:
        with nameserver.call(deadline_s) as asked:
            known = _addresses_of_topic(asked, topic) if topic else _addresses_of_all(asked)
        if target.address not in known:
            raise NoAnswer(f"{nameserver.plan.node} does not know it yet")


def wait_in_sync(
    masters: Sequence[tuple[Target, Sequence[NodePlan]]], deadline_s: float, tell: Callable[[str], None]
) -> None:
    """Wait until every master counts all of its slaves in sync. In controller mode this is part of
    being ready (`_check_elected`).

    On timeout, raises ClusterError with the reason of the first slave that is not.
    """
    while True:
        lacks = [lack for master, slaves in masters if (lack := _out_of_sync(master, slaves))]
        if not lacks:
            return
        if time.monotonic() > deadline_s:
            raise ClusterError(f"not in sync in time: {lacks[0]}")
        tell(f"waiting: {lacks[0]}")
        time.sleep(PAUSE_MAX_S)


def _out_of_sync(master: Target, slaves: Sequence[NodePlan]) -> str:
    try:
        said = _ask_replication(master, time.monotonic() + ASK_S)
    except (NoAnswer, RemoteProtocolError) as error:
        return f"{master.plan.node}: {error}"
    if said is None:
        return f"{master.plan.node} does not report the state of its slaves"
    for slave in slaves:
        member = said.member(slave.broker_id)
        if member is None or not member.get("in_sync"):
            why = member.get("why") if member else "no HA connection"
            return f"{slave.node} is not in sync with {master.plan.node}: {why or 'it is behind'}"
    return ""


def _addresses_of_topic(nameserver: Caller, topic: str) -> list[str]:
    answer = nameserver.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequest(topic=topic))
    return [address for data in TopicRoute.decode(answer.body).broker_datas for address in data.broker_addrs.values()]


def _addresses_of_all(nameserver: Caller) -> list[str]:
    answer = nameserver.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
    groups = ClusterInfo.decode(answer.body).broker_addr_table.values()
    return [address for data in groups for address in data.broker_addrs.values()]


def _send_and_pull(broker: Caller, topic: str, wall_ms: int) -> bool:
    """Send a test message and pull it back. Return False if the broker's settings forbid it.

    Raises NoAnswer if the send fails or the pull does not return the message.
    """
    sent = broker.call(
        RequestCode.SEND_MESSAGE_V2,
        SendMessageRequestV2(
            producer_group=PRODUCER_GROUP,
            topic=topic,
            default_topic="TBW102",
            default_topic_queue_nums=1,
            queue_id=0,
            sys_flag=0,
            born_timestamp=wall_ms,
            flag=0,
            properties="",
            reconsume_times=0,
            unit_mode=False,
            batch=False,
        ),
        TEST_BODY,
    )
    if sent.head.code in NOT_WANTED:
        return False
    if sent.head.code == ResponseCode.SYSTEM_ERROR and (sent.head.remark or "").startswith(TOO_FEW_IN_SYNC):
        raise TooFewInSync(sent.head.remark or TOO_FEW_IN_SYNC)
    if sent.head.code not in STORED:
        checked(sent)
    stored = from_ext(SendMessageResponse, sent.head.ext_fields or {})
    pulled = broker.ask(
        RequestCode.PULL_MESSAGE,
        PullMessageRequest(
            consumer_group=CONSUMER_GROUP,
            topic=topic,
            queue_id=stored.queue_id,
            queue_offset=stored.queue_offset,
            max_msg_nums=1,
            # Let the broker suspend the pull: with transientStorePoolEnable the message becomes
            # readable only after a delay.
            sys_flag=PullSysFlag.SUBSCRIPTION | PullSysFlag.SUSPEND,
            suspend_timeout_millis=PULL_WAIT_MS,
            subscription="*",
            expression_type="TAG",
        ),
    )
    if TEST_BODY not in pulled.body:
        raise NoAnswer("a pull does not return the test message")
    return True


def query_all(targets: Sequence[Target], timeout_s: float) -> dict[str, NodeStatus]:
    """Query all targets at once. Return the status of those that answer in `timeout_s`, by node."""
    from concurrent.futures import ThreadPoolExecutor

    if not targets:
        return {}
    deadline_s = time.monotonic() + timeout_s
    with ThreadPoolExecutor(max_workers=min(16, len(targets))) as pool:
        answers = list(pool.map(lambda target: _query(target, deadline_s), targets))
    return {target.plan.node: seen for target, seen in zip(targets, answers, strict=True) if seen is not None}


def _query(target: Target, deadline_s: float) -> NodeStatus | None:
    try:
        with target.call(deadline_s) as node:
            if target.plan.is_controller:
                return NodeStatus(settings=decode_properties(node.ask(RequestCode.GET_CONTROLLER_CONFIG).body))
            if target.plan.is_nameserver:
                return NodeStatus(settings=decode_properties(node.ask(RequestCode.GET_NAMESRV_CONFIG).body))
            settings = decode_properties(node.ask(RequestCode.GET_BROKER_CONFIG).body)
            facts = KVTable.decode(node.ask(RequestCode.GET_BROKER_RUNTIME_INFO).body).table
    except (NoAnswer, RemoteProtocolError):
        return None
    offset_max = facts.get("commitLogMaxOffset", "")
    return NodeStatus(
        role=settings.get("brokerRole", ""),
        offset_max=int(offset_max) if offset_max.isdigit() else None,
        replication=replication_of(facts),
        standing=role_of(facts),
        settings=settings,
        election=election_of(facts),
    )


def _flag(settings: Mapping[str, str], key: str) -> bool | None:
    return settings[key].lower() == "true" if key in settings else None


def topics(addresses: Sequence[tuple[str, int]], timeout_s: float) -> list[str]:
    """Return the sorted topic names from the first name server that answers; [] if none does."""
    for host, port in addresses:
        try:
            with Caller(host, port, time.monotonic() + timeout_s) as nameserver:
                answer = nameserver.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
                return sorted(TopicList.decode(answer.body).topic_list or ())
        except (NoAnswer, RemoteProtocolError):
            continue
    return []
