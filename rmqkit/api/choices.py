"""Things a user names by text: allocators, models, where to begin. Plug-ins are looked at only for other names."""

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

#: consumers that begin by time and say none begin this long ago (upstream's default)
CONSUME_TIMESTAMP_BACK_MS = 30 * 60 * 1000
MODELS = ("clustering", "broadcasting")


def choose_fault_policy(policy: str | FaultPolicy) -> FaultPolicy:
    """Raises ConfigError, which names the nearest one."""
    return policy if not isinstance(policy, str) else _made(FAULT_POLICIES, "fault_policies", policy, "fault_policy")


def choose_allocator(allocator: str | Allocator) -> Allocator:
    """Raises ConfigError, which names the nearest one."""
    return allocator if not isinstance(allocator, str) else _made(ALLOCATORS, "allocators", allocator, "allocator")


def _made(built_in: Mapping[str, Factory], hook: str, name: str, setting: str) -> Any:
    factory = built_in.get(name)
    if factory is None:
        from rmqkit.plugins import load, pick

        factory = pick(getattr(load(), hook), name, setting)
    return factory()


def choose_model(model: str) -> bool:
    """Whether it is broadcasting. Raises ClientError."""
    if model not in MODELS:
        raise ClientError(f"model {model!r} is not known; choose one of {', '.join(MODELS)}")
    return model == "broadcasting"


def choose_begin(consume_from: str) -> ConsumeFrom:
    """Raises ClientError."""
    try:
        return ConsumeFrom(consume_from)
    except ValueError:
        raise ClientError(f"consume_from {consume_from!r} is not known; choose one of {', '.join(ConsumeFrom)}") from None


def choose_begin_ms(timestamp_ms: int | None) -> int:
    """Where a group begins that begins by time: half an hour ago by default, as upstream's."""
    return wall_ms() - CONSUME_TIMESTAMP_BACK_MS if timestamp_ms is None else timestamp_ms


def choose_offsets(client: Client, group: str, broadcasting: bool, folder: str | None) -> OffsetStore:
    """Where a consumer's offsets are kept: by default upstream's folder in the user's home if it broadcasts."""
    if not broadcasting:
        return RemoteOffsets(client, group)
    path = os.path.abspath(os.path.expanduser(folder or "~/.rocketmq_offsets"))
    return LocalOffsets(client.ports.disk, path, client.settings.client_id, group)


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def choose_trace_topic(trace: bool, topic: str) -> str:
    """Where traces go, "" for nowhere. Raises ClientError for a topic that takes none."""
    if trace:
        check_topic(topic)
    return topic if trace else ""
