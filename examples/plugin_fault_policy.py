"""A plug-in in one file: a fault policy that prefers nearby brokers as long as one of them works.

    python examples/plugin_fault_policy.py [NEAR]

NEAR is the prefix of the names of nearby brokers, `broker-a` by default. The example uses the
cluster that NAMESRV_ADDR names (default 127.0.0.1:9876).

To distribute it, make this file the module `near_policy.py` of a package, and add two lines to its
pyproject.toml. Then `Producer(fault_policy="near")` finds it (see docs/plugins.md):

    [project.entry-points.rmqkit]
    near = "near_policy"
"""

import sys

from rmqkit import Message, MessageQueue, Producer
from rmqkit.client.fault_policy import QueueRing
from rmqkit.hookspecs import hookimpl
from rmqkit.plugins import load, pick

TOPIC = "example-near"
NEAR = sys.argv[1] if len(sys.argv) > 1 else "broker-a"
REST_MS = 10_000


class NearFirst:
    """Picks nearby brokers first, then any that works; avoids a failed broker for 10 seconds."""

    def __init__(self) -> None:
        self.rests_until_ms: dict[str, int] = {}

    def pick(self, ring: QueueRing, broker_failed: str | None, now_ms: int) -> MessageQueue:
        def works(queue: MessageQueue) -> bool:
            return queue.broker_name != broker_failed and self.rests_until_ms.get(queue.broker_name, 0) <= now_ms

        return (
            ring.next_with(lambda queue: queue.broker_name.startswith(NEAR) and works(queue))
            or ring.next_with(works)
            or ring.next_with(lambda queue: queue.broker_name != broker_failed)
            or ring.next()
        )

    def update(self, broker_name: str, latency_ms: int, *, isolate: bool, reachable: bool, now_ms: int) -> None:
        if isolate:
            self.rests_until_ms[broker_name] = now_ms + REST_MS
        else:
            self.rests_until_ms.pop(broker_name, None)


@hookimpl
def rmqkit_fault_policies():
    return {"near": NearFirst}


def show_choices(make) -> None:
    """Show what the policy picks when brokers fail; needs no broker, since time is an argument."""
    policy = make()
    ring = QueueRing([MessageQueue(TOPIC, name, 0) for name in (f"{NEAR}-1", f"{NEAR}-2", "far-away")], 0)

    def choices(now_ms: int) -> list[str]:
        return sorted({policy.pick(ring, None, now_ms).broker_name for _ in range(6)})

    print("all is well:        ", choices(0))
    policy.update(f"{NEAR}-1", 3_000, isolate=True, reachable=False, now_ms=0)
    print(f"{NEAR}-1 failed:  ", choices(1))
    assert choices(1) == [f"{NEAR}-2"]
    policy.update(f"{NEAR}-2", 3_000, isolate=True, reachable=False, now_ms=1)
    print("both near ones did: ", choices(2))
    assert choices(2) == ["far-away"]
    print("ten seconds later:  ", choices(REST_MS + 1))
    assert choices(REST_MS + 1) == [f"{NEAR}-1", f"{NEAR}-2"]


def main() -> None:
    # Installed plug-ins are found automatically. A module that is not installed is loaded by name.
    make = pick(load([__spec__.name if __spec__ else "plugin_fault_policy"]).fault_policies, "near", "fault_policy")
    show_choices(make)
    with Producer(group="example-near-producer", fault_policy=make()) as producer:
        for number in range(4):
            result = producer.send(Message(TOPIC, f"message {number}".encode()))
            print(f"sent to {result.queue.broker_name}, queue {result.queue.queue_id}")


if __name__ == "__main__":
    main()
