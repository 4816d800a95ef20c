"""The error of a query that would otherwise skip messages."""

from rmqkit.errors import RmqkitError


class DataLoss(RmqkitError):
    """Messages that a query should read are gone, and `failOnDataLoss` is true.

    `wanted` is the requested offset, `smallest` the smallest offset that the queue still has, and
    `cause` the most likely reason. The error can be pickled: Spark sends errors from the workers to
    the driver.
    """

    def __init__(self, topic: str, broker: str, queue: int, wanted: int, smallest: int, cause: str) -> None:
        super().__init__(topic, broker, queue, wanted, smallest, cause)
        self.topic = topic
        self.broker = broker
        self.queue = queue
        self.wanted = wanted
        self.smallest = smallest
        self.cause = cause

    def __str__(self) -> str:
        return (
            f"{queue_name(self.topic, self.broker, self.queue)} no longer has the message at offset {self.wanted} (its "
            f"smallest offset is {self.smallest}); likely cause: {self.cause}. To continue without the lost messages, set "
            "failOnDataLoss=false"
        )


def queue_name(topic: str, broker: str, queue: int) -> str:
    """Return the name of a queue for errors and warnings."""
    return f"queue {queue} of topic {topic} on {broker}"
