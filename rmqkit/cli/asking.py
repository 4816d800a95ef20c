"""What the commands that ask brokers share: an Admin for the cluster at hand, and answers that say what is wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from rmqkit.cli.finding import find_namesrv
from rmqkit.cli.usage import Failed, UsageError
from rmqkit.errors import BrokerError, NoRoute
from rmqkit.wire.codes import ResponseCode

if TYPE_CHECKING:
    from rmqkit import Admin

SYSTEM_PREFIXES = ("%RETRY%", "%DLQ%", "RMQ_SYS_", "rmq_sys_")


@contextlib.contextmanager
def admin_of(namesrv: str | None) -> Iterator[Admin]:
    addresses = find_namesrv(namesrv)
    from rmqkit import Admin

    with Admin(addresses) as admin:
        yield admin


def system_topics(admin: Admin) -> set[str]:
    """Topics that nobody created: the fixed ones, and those called as clusters and brokers are."""
    from rmqkit.broker.names import SYSTEM_TOPICS

    info = admin.cluster_info()
    return {*SYSTEM_TOPICS, *info.cluster_addr_table, *info.broker_addr_table}


def is_system_topic(topic: str, fixed: set[str]) -> bool:
    return topic in fixed or topic.startswith(SYSTEM_PREFIXES) or topic.endswith("_REPLY_TOPIC")


@contextlib.contextmanager
def known_topic(admin: Admin, topic: str) -> Iterator[None]:
    """Turn "no route" into a line that names the nearest topic there is."""
    try:
        yield
    except (NoRoute, BrokerError) as error:
        if isinstance(error, BrokerError) and error.code != ResponseCode.TOPIC_NOT_EXIST:
            raise
        known = admin.topics()
        if topic in known:
            raise
        raise Failed(f"there is no topic {topic}{nearest(topic, known)}") from None


def nearest(word: str, known: list[str]) -> str:
    near = get_close_matches(word, known, n=1, cutoff=0.7)
    return f"; did you mean {near[0]}?" if near else ""


def choose_queue(queues: list[Any], text: str) -> Any:
    """The queue meant by `ID` or `BROKER:ID`. Raises UsageError."""
    broker, _colon, number = text.rpartition(":")
    found = [each for each in queues if str(each.queue_id) == number and broker in ("", each.broker_name)]
    if len(found) == 1:
        return found[0]
    names = ", ".join(f"{each.broker_name}:{each.queue_id}" for each in (found or queues))
    raise UsageError(f"queue {text}: {'say which of' if found else 'there are'} {names}")


def queue_fields(queue: Any) -> dict[str, Any]:
    """A queue as JSON has it."""
    return {"topic": queue.topic, "broker_name": queue.broker_name, "queue_id": queue.queue_id}
