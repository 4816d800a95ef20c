"""PopAssignment: which queues a consumer pops.

Each round asks a broker of the topic (400). If the broker assigns queues to pop, these are the
consumer's: a share of the queues where `popShareQueueNum` says so, else queue -1, which means all,
of each broker.

In all other cases the consumer pops queue -1 of every broker of the topic: the mode of the group at
the broker is PULL (its default), the broker does not know the request or does not answer, or it
assigns nothing. So `mode="pop"` of a consumer of ours pops whatever mode an administrator has set
for Java's clients (401).

Source: `client/.../impl/consumer/RebalanceImpl.java` (`getRebalanceResultFromBroker`,
`updateMessageQueueAssignment`).
"""

from typing import TYPE_CHECKING

from rmqkit.client.client import decoded
from rmqkit.errors import ClientError
from rmqkit.wire.bodies import MessageQueue, QueryAssignmentRequest, QueryAssignmentResponse
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.topic_names import RETRY_PREFIX

if TYPE_CHECKING:
    from rmqkit.client.client import Client
    from rmqkit.client.routes import Route

ALL_QUEUES = -1
#: How this group's queues are divided if a broker divides them, as Java's clients ask for.
STRATEGY = "AVG"


async def queues_to_pop(client: "Client", group: str, topic: str) -> list[MessageQueue]:
    """Return the queues of a topic that this member pops, sorted.

    Raises NoRoute or PeerUnreachable if the topic has no route.
    """
    route = await client.routes.find(topic)
    # Brokers assign a retry topic to be pulled, always.
    assigned = [] if topic.startswith(RETRY_PREFIX) else await _assigned(client, group, route)
    if assigned:
        return sorted(assigned)
    names = sorted({queue.broker_name for queue in route.subscribe})
    return [MessageQueue(topic, name, ALL_QUEUES) for name in names]


async def _assigned(client: "Client", group: str, route: "Route") -> list[MessageQueue]:
    """Return the queues that a broker assigns for pops; empty if it assigns none."""
    names = sorted(route.brokers)
    if not names:
        return []
    reader = client.routes.reader(names[client.ports.entropy.randrange(len(names))])
    if reader is None:
        return []
    request = QueryAssignmentRequest(
        client_id=client.settings.client_id,
        consumer_group=group,
        message_model="CLUSTERING",
        strategy_name=STRATEGY,
        topic=route.topic,
    )
    try:
        reply = await client.ask(reader.address, RequestCode.QUERY_ASSIGNMENT, body=request.encode())
        found = decoded(reply, QueryAssignmentResponse.decode).message_queue_assignments or []
    except ClientError:
        return []
    queues = [each.message_queue for each in found if each.mode == "POP" and each.message_queue is not None]
    known = {queue.broker_name for queue in route.subscribe}
    return [queue for queue in queues if queue.topic == route.topic and queue.broker_name in known]
