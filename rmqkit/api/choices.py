"""Things a user names by text: allocators, models, where to begin. Plug-ins are looked at only for other names."""

from rmqkit.client.allocators import ALLOCATORS, Allocator
from rmqkit.client.consumers.subscriptions import ConsumeFrom
from rmqkit.client.fault_policy import FAULT_POLICIES, FaultPolicy
from rmqkit.client.producers.outgoing import check_topic
from rmqkit.errors import ClientError

MODELS = ("clustering", "broadcasting")


def choose_fault_policy(policy: str | FaultPolicy) -> FaultPolicy:
    """Raises ConfigError, which names the nearest one."""
    if not isinstance(policy, str):
        return policy
    factory = FAULT_POLICIES.get(policy)
    if factory is None:
        from rmqkit.plugins import load, pick

        factory = pick(load().fault_policies, policy, "fault_policy")
    chosen: FaultPolicy = factory()
    return chosen


def choose_allocator(allocator: str | Allocator) -> Allocator:
    """Raises ConfigError, which names the nearest one."""
    if not isinstance(allocator, str):
        return allocator
    factory = ALLOCATORS.get(allocator)
    if factory is None:
        from rmqkit.plugins import load, pick

        factory = pick(load().allocators, allocator, "allocator")
    chosen: Allocator = factory()
    return chosen


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


def choose_trace_topic(trace: bool, topic: str) -> str:
    """Where traces go, "" for nowhere. Raises ClientError for a topic that takes none."""
    if trace:
        check_topic(topic)
    return topic if trace else ""
