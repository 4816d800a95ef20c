"""The interface of a service's load on real processes."""

import threading
from collections.abc import Callable
from typing import Protocol

from rmqkit.client.message import MessageExt

#: (kind of group, topic, flag, receiver): consume a topic as the only member of a group, while the
#: flag is set, and pass each message to the receiver
ReadTopic = Callable[[str, str, threading.Event, Callable[[MessageExt], None]], None]


class ServiceClients(Protocol):
    """The clients of one service. What they did becomes rows (`drill/services/service_rows.py`)."""

    def start(self) -> None:
        """Start the clients."""

    def stop_sending(self, join_s: float) -> None:
        """End the clients that send, and wait for each at most `join_s` seconds.

        The others continue, so that what is pending ends.
        """

    def close(self, join_s: float) -> None:
        """End all clients, and wait for each at most `join_s` seconds. Safe to call twice."""
