"""The connections of a client that sends raw requests to the broker that the route names.

Lockers and members that pop use them.
"""

from collections.abc import Callable
from typing import TypeVar

from rmqkit.drill.real.node_client import SILENT, NodeClient
from rmqkit.runtime.connection import Address

T = TypeVar("T")

ASK_S = 0.5


class Peers:
    """The connections of one client. Each is opened on first use, and again after it broke."""

    def __init__(self, nameserver: Address) -> None:
        self._nameserver = nameserver
        self._open: dict[str, NodeClient] = {}
        #: the last error, and whether the request of it was sent
        self.error = ""
        self.was_sent = False

    def master_of(self, topic: str, broker: str) -> str:
        """Return the address that the route names as id 0.

        Return "" if there is none, or if the name server does not answer.
        """
        found = self.ask(str(self._nameserver), lambda asked: asked.shown(topic, broker))
        return found[0] if found else ""

    def ask(self, address: str, work: Callable[[NodeClient], T]) -> T | None:
        """Call `work` with a connection. Return None if no valid answer arrived in time."""
        self.was_sent = False
        try:
            asked = self._open.get(address)
            if asked is None:
                host, port = Address.parse(address)
                asked = self._open[address] = NodeClient(host, port, ASK_S)
            self.was_sent = True
            return work(asked.within(ASK_S))
        except SILENT as error:
            self.error = str(error)
            gone = self._open.pop(address, None)
            if gone is not None:
                gone.close()
            return None

    def close(self) -> None:
        for asked in self._open.values():
            asked.close()
