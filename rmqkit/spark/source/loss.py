"""What is no longer there: the error of a query that would pass over messages."""

from rmqkit.errors import RmqkitError


class DataLoss(RmqkitError):
    """Messages that a query should read are not there, with `failOnDataLoss` on.

    `wanted` is the offset that was asked for, `smallest` the smallest one the queue still has, `cause` what most likely
    took the messages away. Also read where it was pickled: Spark hands errors from worker to driver.
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
            f"{queue_name(self.topic, self.broker, self.queue)} has no message at offset {self.wanted} any more, the "
            f"smallest there is {self.smallest}; likely cause: {self.cause}. To go on without what is gone, set "
            "failOnDataLoss=false"
        )


def queue_name(topic: str, broker: str, queue: int) -> str:
    """How errors and warnings name a queue."""
    return f"queue {queue} of topic {topic} on {broker}"
