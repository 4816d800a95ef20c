"""Admin, statistics and maintenance: rates, permissions, cleaning, cloning of offsets.

Counters (315) are queried by name and key. A broker responds with an error for a counter that it
never counted, which means zero. Only a broker that does not know the request at all is an error.

Source: `tools/.../admin/DefaultMQAdminExtImpl.java`,
`tools/.../command/stats/StatsAllSubCommand.java`, `store/.../stats/BrokerStatsManager.java`,
`common/.../stats/Stats.java`.
"""

from collections.abc import Iterable
from typing import NamedTuple

from rmqkit.client.admin.groups import AdminCore
from rmqkit.client.client import decoded
from rmqkit.errors import ClientError
from rmqkit.runtime.connection import Address
from rmqkit.wire.bodies import BrokerStatsData, TopicConfig
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.fastjson import MessageQueue
from rmqkit.wire.schemas.admin import ViewBrokerStatsDataRequest
from rmqkit.wire.schemas.offsets import CloneGroupOffsetRequest
from rmqkit.wire.schemas.topics import CreateTopicRequest
from rmqkit.wire.topic_names import RETRY_PREFIX

TOPIC_PUT_NUMS = "TOPIC_PUT_NUMS"
GROUP_GET_NUMS = "GROUP_GET_NUMS"
CLEAN_TIMEOUT_MS = 15_000
#: For an unknown counter, brokers return SYSTEM_ERROR "The stats <name> <key> not exist".
_NO_COUNTER = frozenset({ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR})


class Rate(NamedTuple):
    """Messages per second over the last minute, and messages of the last 24 hours.

    `today` covers less if the broker has not run that long.
    """

    tps: float = 0.0
    today: int = 0


class TopicRates(NamedTuple):
    """The rates of a topic: into it, and out of it to each group.

    `behind` has the number of messages that each group has yet to consume.
    """

    topic: str
    into: Rate
    out: dict[str, Rate]
    behind: dict[str, int]


async def broker_stats(admin: AdminCore, broker: str, name: str, key: str) -> BrokerStatsData | None:
    """Return one counter of a broker, or None if it never counted that key.

    Args:
        broker: As in `broker_address`.
        name: The counter, such as `TOPIC_PUT_NUMS`.
        key: What is counted: a topic, or `topic@group`.
    """
    address = await admin.broker_address(broker)
    request = ViewBrokerStatsDataRequest(stats_name=name, stats_key=key)
    reply = await admin.client.ask(address, RequestCode.VIEW_BROKER_STATS_DATA, request, accept=_NO_COUNTER)
    return decoded(reply, BrokerStatsData.decode) if reply.is_ok else None


async def topic_rates(admin: AdminCore, topic: str) -> TopicRates:
    """Return the rates of a topic, summed over its masters.

    Args:
        topic: The topic.

    Raises:
        NoRoute: If no name server knows the topic.
        BrokerError: If a broker has no counters.
    """
    brokers = list((await admin.client.routes.fetch(topic)).brokers)
    masters = {name: address for name, address in (await admin.masters()).items() if name in brokers}
    into = await _sum(admin, masters.values(), TOPIC_PUT_NUMS, topic)
    out: dict[str, Rate] = {}
    behind: dict[str, int] = {}
    for group in await admin.groups_of_topic(topic):
        out[group] = await _sum(admin, masters.values(), GROUP_GET_NUMS, f"{topic}@{group}")
        progress = await admin.consume_stats(group, topic)
        behind[group] = sum(max(0, each.broker_offset - max(0, each.consumer_offset)) for each in progress.values())
    return TopicRates(topic, into, out, behind)


async def _sum(admin: AdminCore, addresses: Iterable[Address], name: str, key: str) -> Rate:
    tps, today = 0.0, 0
    for address in addresses:
        data = await broker_stats(admin, str(address), name, key)
        if data is not None:
            tps += data.stats_minute.tps
            today += data.stats_day.sum or data.stats_hour.sum or data.stats_minute.sum
    return Rate(tps, today)


async def set_topic_perm(admin: AdminCore, topic: str, perm: int, broker: str | None = None) -> dict[str, int]:
    """Change the permissions of a topic, at one broker or at every master that has it.

    All other settings of the topic stay.

    Args:
        topic: The topic.
        perm: The sum of 4 (read) and 2 (write).
        broker: Only this broker, as in `broker_address`. None: all masters.

    Returns:
        The previous permissions, by broker.

    Raises:
        ClientError: If no broker has the topic.
    """
    targets = {broker: await admin.broker_address(broker)} if broker is not None else await admin.masters()
    before: dict[str, int] = {}
    for name, address in targets.items():
        config = await admin.topic_config(topic, str(address))
        if config is None:
            continue
        before[name] = config.perm
        request = _as_request(config, perm)
        await admin.client.ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, request)
    if not before:
        raise ClientError(f"there is no topic {topic} at {', '.join(targets) or 'any broker'}")
    return before


def _as_request(config: TopicConfig, perm: int) -> CreateTopicRequest:
    return CreateTopicRequest(
        topic=config.topic_name,
        default_topic="TBW102",
        read_queue_nums=config.read_queue_nums,
        write_queue_nums=config.write_queue_nums,
        perm=perm,
        topic_filter_type=config.topic_filter_type,
        topic_sys_flag=config.topic_sys_flag,
        order=config.order,
    )


async def clone_group(
    admin: AdminCore, source: str, target: str, topic: str | None = None, *, offline: bool = False
) -> dict[MessageQueue, int]:
    """Copy one group's offsets to another group.

    Each topic is a request of its own: Apache's broker reports success for a request without a
    topic but does nothing (`AdminBrokerProcessor.cloneGroupOffset`).

    Args:
        source: The group to copy from.
        target: The group to copy to.
        topic: Only this topic. None: all topics that `source` has consumed.
        offline: Whether to include topics that the online members of `source` no longer consume.

    Returns:
        The new offsets of `target`, by queue.
    """
    if topic is None:
        topics = [each for each in await admin.topics_of_group(source) if not each.startswith(RETRY_PREFIX)]
    else:
        topics = [topic]
    masters = await admin.masters()
    placed: dict[MessageQueue, int] = {}
    for each in topics:
        request = CloneGroupOffsetRequest(src_group=source, dest_group=target, topic=each, offline=offline)
        for name in (await admin.client.routes.fetch(each)).brokers:
            if name in masters:
                await admin.client.ask(masters[name], RequestCode.CLONE_GROUP_OFFSET, request)
        found = await admin.group_offsets(target, each)
        placed |= {queue: offset for queue, offset in found.items() if offset is not None}
    return placed


async def clean_unused_topics(admin: AdminCore, broker: str | None = None) -> list[str]:
    """Remove the queues of topics that a broker no longer has (316).

    Args:
        broker: Only this broker, as in `broker_address`. None: all masters.

    Returns:
        The brokers that did it.
    """
    return await _clean(admin, RequestCode.CLEAN_UNUSED_TOPIC, broker)


async def clean_expired_queues(admin: AdminCore, broker: str | None = None) -> list[str]:
    """Remove queues whose messages have all expired (306).

    Args:
        broker: Only this broker, as in `broker_address`. None: all masters.

    Returns:
        The brokers that did it.
    """
    return await _clean(admin, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, broker)


async def _clean(admin: AdminCore, code: int, broker: str | None) -> list[str]:
    targets = {broker: await admin.broker_address(broker)} if broker is not None else await admin.masters()
    for address in targets.values():
        await admin.client.ask(address, code, timeout_ms=CLEAN_TIMEOUT_MS)
    return list(targets)
