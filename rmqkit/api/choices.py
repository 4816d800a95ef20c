"""Resolves settings that a user gives as text: fault policies, allocators, models, start offsets.

Built-in names are looked up first. Plug-ins are loaded only for a name that is not built in.
"""

import os
import time
from collections.abc import Mapping
from typing import Any

from rmqkit.client.allocators import ALLOCATORS, Allocator
from rmqkit.client.client import Client
from rmqkit.client.consumers.offset_store import LocalOffsets, OffsetStore, RemoteOffsets
from rmqkit.client.consumers.subscriptions import ConsumeFrom
from rmqkit.client.fault_policy import FAULT_POLICIES, FaultPolicy
from rmqkit.client.producers.outgoing_message import check_topic
from rmqkit.errors import ClientError
from rmqkit.hookspecs import Factory

#: Default of `consume_timestamp_ms`: 30 minutes before the consumer is created, as in Apache.
CONSUME_TIMESTAMP_BACK_MS = 30 * 60 * 1000
MODELS = ("clustering", "broadcasting")


def choose_fault_policy(policy: str | FaultPolicy) -> FaultPolicy:
    """Return the fault policy for a name, or the object itself.

    Raises ConfigError for an unknown name; the error suggests the closest one.
    """
    return policy if not isinstance(policy, str) else _made(FAULT_POLICIES, "fault_policies", policy, "fault_policy")


def choose_allocator(allocator: str | Allocator) -> Allocator:
    """Return the allocator for a name, or the object itself.

    Raises ConfigError for an unknown name; the error suggests the closest one.
    """
    return allocator if not isinstance(allocator, str) else _made(ALLOCATORS, "allocators", allocator, "allocator")


def _made(built_in: Mapping[str, Factory], hook: str, name: str, setting: str) -> Any:
    factory = built_in.get(name)
    if factory is None:
        from rmqkit.plugins import load, pick

        factory = pick(getattr(load(), hook), name, setting)
    return factory()


def choose_model(model: str) -> bool:
    """Return whether `model` is broadcasting. Raises ClientError for an unknown model."""
    if model not in MODELS:
        raise ClientError(f"model {model!r} is not known; choose one of {', '.join(MODELS)}")
    return model == "broadcasting"


def choose_begin(consume_from: str) -> ConsumeFrom:
    """Return the `ConsumeFrom` for a name. Raises ClientError for an unknown name."""
    try:
        return ConsumeFrom(consume_from)
    except ValueError:
        raise ClientError(f"consume_from {consume_from!r} is not known; choose one of {', '.join(ConsumeFrom)}") from None


def choose_begin_ms(timestamp_ms: int | None) -> int:
    """Return the wall time in ms from which `consume_from="timestamp"` consumes.

    The default is 30 minutes ago, as in Apache's clients.
    """
    return wall_ms() - CONSUME_TIMESTAMP_BACK_MS if timestamp_ms is None else timestamp_ms


def choose_offsets(client: Client, group: str, broadcasting: bool, folder: str | None) -> OffsetStore:
    """Return the offset store of a consumer.

    Clustering stores offsets at the brokers. Broadcasting stores them in files below `folder`, by
    default `~/.rocketmq_offsets`, which is Apache's folder.
    """
    if not broadcasting:
        return RemoteOffsets(client, group)
    path = os.path.abspath(os.path.expanduser(folder or "~/.rocketmq_offsets"))
    return LocalOffsets(client.ports.disk, path, client.settings.client_id, group)


def wall_ms() -> int:
    """Return the Unix time in ms."""
    return time.time_ns() // 1_000_000


def choose_trace_topic(trace: bool, topic: str) -> str:
    """Return the topic that traces go to, or "" if `trace` is off.

    Raises InvalidMessage for a topic that cannot be sent to.
    """
    if trace:
        check_topic(topic)
    return topic if trace else ""
