"""The errors of a query that would otherwise skip messages."""

from rmqkit.errors import RmqkitError
from rmqkit.spark.source.ranges import QueueKey


class DataLoss(RmqkitError):
    """Messages that a query should read are gone, and `failOnDataLoss` is true.

    `wanted` is the requested offset, `smallest` the smallest offset that the queue still has, and
    `cause` the most likely reason. The error can be pickled: Spark sends errors from the workers to
    the driver.
    """

    TEXT = (
        "{key.name} no longer has the message at offset {wanted} (its smallest offset is {smallest}); likely cause: "
        "{cause}. To continue without the lost messages, set failOnDataLoss=false"
    )

    def __init__(self, key: QueueKey, wanted: int, smallest: int, cause: str) -> None:
        super().__init__(key, wanted, smallest, cause)
        self.key, self.wanted, self.smallest, self.cause = key, wanted, smallest, cause

    def __str__(self) -> str:
        return self.TEXT.format(**vars(self))


class OffsetBeyond(DataLoss):
    """A queue ends before the query's next offset. `smallest` is the end of the queue."""

    TEXT = (
        "{key.name} ends at offset {smallest}, but the query is at {wanted}; likely cause: {cause}. To continue with the "
        "messages that exist, set failOnDataLoss=false"
    )


class QueueClosed(DataLoss):
    """A queue is no longer readable but has unread messages. `smallest` is the end of the queue."""

    TEXT = (
        "{key.name} has messages from offset {wanted} to {smallest} that can no longer be read: {cause}. To continue "
        "without them, set failOnDataLoss=false"
    )
