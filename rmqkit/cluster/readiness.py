"""Whether nodes answer, seen from outside as a client would see it.

A node listens before it has recovered, so an open port proves nothing. A name server is ready when it answers. A
broker is ready when a message to its own topic (the one called as its group is) is stored, a pull gives that message
back, and every name server routes that topic to it. A broker whose settings forbid that send has answered as well: it
is ready once the name servers know it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from rmqkit.cluster.caller import Caller, NoAnswer, checked
from rmqkit.cluster.description import NodePlan
from rmqkit.cluster.errors import ClusterError
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
#: answers of a broker that works and is set to take no such message
NOT_WANTED = (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.NO_PERMISSION)
#: one round of questions to one node
ASK_S = 2.0
#: how long the test pull may wait for the test message
PULL_WAIT_MS = 1000
PAUSE_S = 0.01
PAUSE_MAX_S = 0.1
TEST_BODY = b"is it ready?"


class Target(NamedTuple):
    """A node and where it answers: `host` is what clients are told."""

    plan: NodePlan
    host: str
    port: int

    @property
    def address(self) -> str:
        return self._at(self.port)

    @property
    def ha_address(self) -> str:
        return self._at(self.port + 1)

    def _at(self, port: int) -> str:
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"


class NodeSeen(NamedTuple):
    """What a node that answers says of itself; the fields are those of a broker."""

    role: str = ""
    offset_max: int | None = None
    in_sync: int | None = None


class NodeDied(Exception):
    """The process of a node is not there; `log_from` is where its log was when it was started."""

    def __init__(self, node: str, log_from: int) -> None:
        super().__init__(node)
        self.node = node
        self.log_from = log_from


def wait_ready(
    targets: Sequence[Target],
    nameservers: Sequence[Target],
    alive: Callable[[str], bool],
    deadline_s: float,
    log_from: Mapping[str, int],
    tell: Callable[[str], None],
) -> None:
    """Return when every target is ready, and every one of the `nameservers` routes to it.

    `tell` is given a line after each round of questions: for whom this waits, and why. Raises NodeDied, or ClusterError
    with what the last one still lacks.
    """
    waiting = list(targets)
    pause_s = PAUSE_S
    while waiting:
        for target in targets:
            if not alive(target.plan.node):
                raise NodeDied(target.plan.node, log_from.get(target.plan.node, 0))
        lacks = {}
        for target in waiting:
            try:
                _check(target, nameservers, min(deadline_s, time.monotonic() + ASK_S))
            except (NoAnswer, RemoteProtocolError) as error:
                lacks[target.plan.node] = str(error)
        waiting = [target for target in waiting if target.plan.node in lacks]
        if waiting:
            node, lack = next(iter(lacks.items()))
            if time.monotonic() > deadline_s:
                raise ClusterError(f"{node} is not ready in time: {lack}")
            tell(f"waiting for {', '.join(lacks)}: {lack}")
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, PAUSE_MAX_S)


def _check(target: Target, nameservers: Sequence[Target], deadline_s: float) -> None:
    """Raises NoAnswer."""
    with Caller(target.host, target.port, deadline_s) as node:
        if not target.plan.is_broker:
            node.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
            return
        topic = target.plan.broker_name
        has_topic = _send_and_pull(node, topic, time.time_ns() // 1_000_000)
    for nameserver in nameservers:
        with Caller(nameserver.host, nameserver.port, deadline_s) as asked:
            known = _addresses_of_topic(asked, topic) if has_topic else _addresses_of_all(asked)
        if target.address not in known:
            raise NoAnswer(f"{nameserver.plan.node} does not know it yet")


def _addresses_of_topic(nameserver: Caller, topic: str) -> list[str]:
    answer = nameserver.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequest(topic=topic))
    return [address for data in TopicRoute.decode(answer.body).broker_datas for address in data.broker_addrs.values()]


def _addresses_of_all(nameserver: Caller) -> list[str]:
    answer = nameserver.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
    groups = ClusterInfo.decode(answer.body).broker_addr_table.values()
    return [address for data in groups for address in data.broker_addrs.values()]


def _send_and_pull(broker: Caller, topic: str, wall_ms: int) -> bool:
    """Whether the broker took a message; it must then give it back. Raises NoAnswer."""
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
    stored = from_ext(SendMessageResponse, checked(sent).head.ext_fields or {})
    pulled = broker.ask(
        RequestCode.PULL_MESSAGE,
        PullMessageRequest(
            consumer_group=CONSUMER_GROUP,
            topic=topic,
            queue_id=stored.queue_id,
            queue_offset=stored.queue_offset,
            max_msg_nums=1,
            # With a pool in front of the log (transientStorePoolEnable) it is readable a moment later.
            sys_flag=PullSysFlag.SUBSCRIPTION | PullSysFlag.SUSPEND,
            suspend_timeout_millis=PULL_WAIT_MS,
            subscription="*",
            expression_type="TAG",
        ),
    )
    if TEST_BODY not in pulled.body:
        raise NoAnswer("the test message does not come back")
    return True


def look(targets: Sequence[Target], timeout_s: float) -> dict[str, NodeSeen]:
    """What those targets that answer within `timeout_s` say, by node. All are asked at once."""
    from concurrent.futures import ThreadPoolExecutor

    if not targets:
        return {}
    deadline_s = time.monotonic() + timeout_s
    with ThreadPoolExecutor(max_workers=min(16, len(targets))) as pool:
        answers = list(pool.map(lambda target: _look_at(target, deadline_s), targets))
    return {target.plan.node: seen for target, seen in zip(targets, answers, strict=True) if seen is not None}


def _look_at(target: Target, deadline_s: float) -> NodeSeen | None:
    try:
        with Caller(target.host, target.port, deadline_s) as node:
            if not target.plan.is_broker:
                node.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
                return NodeSeen()
            settings = decode_properties(node.ask(RequestCode.GET_BROKER_CONFIG).body)
            facts = KVTable.decode(node.ask(RequestCode.GET_BROKER_RUNTIME_INFO).body).table
    except (NoAnswer, RemoteProtocolError):
        return None
    offset_max = facts.get("commitLogMaxOffset", "")
    return NodeSeen(
        role=settings.get("brokerRole", ""),
        offset_max=int(offset_max) if offset_max.isdigit() else None,
        in_sync=1,
    )


def topics(addresses: Sequence[tuple[str, int]], timeout_s: float) -> list[str]:
    """Topic names that the first name server to answer knows; [] when none does."""
    for host, port in addresses:
        try:
            with Caller(host, port, time.monotonic() + timeout_s) as nameserver:
                answer = nameserver.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
                return sorted(TopicList.decode(answer.body).topic_list or ())
        except (NoAnswer, RemoteProtocolError):
            continue
    return []
