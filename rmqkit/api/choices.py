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
from rmqkit.client.consumers.pop.messages import (
    BATCH_NUMS_MAX,
    INVISIBLE_MS_MAX,
    INVISIBLE_MS_MIN,
    PopConsumerSettings,
)
from rmqkit.client.consumers.push_queue import PushConsumerSettings
from rmqkit.client.consumers.subscriptions import ConsumeFrom
from rmqkit.client.fault_policy import FAULT_POLICIES, FaultPolicy
from rmqkit.client.producers.outgoing_message import check_topic
from rmqkit.errors import ClientError
from rmqkit.hookspecs import Factory

#: Default of `consume_timestamp_ms`: 30 minutes before the consumer is created, as in Apache.
CONSUME_TIMESTAMP_BACK_MS = 30 * 60 * 1000
MODELS = ("clustering", "broadcasting")
MODES = ("pull", "pop")


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


def choose_pop(
    mode: str, settings: PushConsumerSettings, invisible_ms: int, batch_nums: int, threshold: int
) -> PopConsumerSettings | None:
    """Return the settings of a consumer in pop mode, or None if `mode` is pull.

    Raises ClientError for an unknown mode, a value out of range, or a setting that pops exclude.
    """
    if mode not in MODES:
        raise ClientError(f"mode {mode!r} is not known; choose one of {', '.join(MODES)}")
    if not INVISIBLE_MS_MIN <= invisible_ms <= INVISIBLE_MS_MAX:
        raise ClientError(
            f"pop_invisible_time_ms is {invisible_ms}, and must be from {INVISIBLE_MS_MIN} to {INVISIBLE_MS_MAX} ms"
        )
    if not 1 <= batch_nums <= BATCH_NUMS_MAX:
        raise ClientError(f"pop_batch_nums is {batch_nums}, and must be from 1 to {BATCH_NUMS_MAX}")
    if threshold < 1:
        raise ClientError(f"pop_threshold_for_queue is {threshold}, and must be at least 1")
    if mode == "pull":
        return None
    if settings.orderly:
        raise ClientError('mode="pop" excludes orderly: members share a queue, so its order is lost; use mode="pull"')
    if settings.broadcasting:
        raise ClientError('mode="pop" excludes model="broadcasting": a message goes to one member; use mode="pull"')
    if settings.consume_from is ConsumeFrom.TIMESTAMP:
        raise ClientError(
            'mode="pop" begins at consume_from="first" or "last"; for a time, set the offsets with `rmqkit offset set`'
        )
    return PopConsumerSettings(
        group=settings.group,
        consume_from=settings.consume_from,
        consume_message_batch_max_size=settings.consume_message_batch_max_size,
        max_reconsume_times=settings.max_reconsume_times,
        pop_invisible_time_ms=invisible_ms,
        pop_batch_nums=batch_nums,
        pop_threshold_for_queue=threshold,
    )


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


def mono_ms() -> int:
    """Return the monotonic time in ms: the I/O thread's clock, read at once."""
    return time.monotonic_ns() // 1_000_000


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
