"""The errors of a query that would otherwise skip messages."""

from rmqkit.errors import RmqkitError


class DataLoss(RmqkitError):
    """Messages that a query should read are gone, and `failOnDataLoss` is true.

    `wanted` is the requested offset, `smallest` the smallest offset that the queue still has, and
    `cause` the most likely reason. The error can be pickled: Spark sends errors from the workers to
    the driver.
    """

    TEXT = (
        "{queue} no longer has the message at offset {wanted} (its smallest offset is {smallest}); likely cause: "
        "{cause}. To continue without the lost messages, set failOnDataLoss=false"
    )

    def __init__(self, topic: str, broker: str, queue: int, wanted: int, smallest: int, cause: str) -> None:
        super().__init__(topic, broker, queue, wanted, smallest, cause)
        self.topic, self.broker, self.queue = topic, broker, queue
        self.wanted, self.smallest, self.cause = wanted, smallest, cause

    def __str__(self) -> str:
        queue = queue_name(self.topic, self.broker, self.queue)
        return self.TEXT.format(queue=queue, wanted=self.wanted, smallest=self.smallest, cause=self.cause)


class OffsetBeyond(DataLoss):
    """A queue ends before the query's next offset. `smallest` is the end of the queue."""

    TEXT = (
        "{queue} ends at offset {smallest}, but the query is at {wanted}; likely cause: {cause}. To continue with the "
        "messages that exist, set failOnDataLoss=false"
    )


class QueueClosed(DataLoss):
    """A queue is no longer readable but has unread messages. `smallest` is the end of the queue."""

    TEXT = (
        "{queue} has messages from offset {wanted} to {smallest} that can no longer be read: {cause}. To continue "
        "without them, set failOnDataLoss=false"
    )


def queue_name(topic: str, broker: str, queue: int) -> str:
    """Return the name of a queue for errors and warnings."""
    return f"queue {queue} of topic {topic} on {broker}"
