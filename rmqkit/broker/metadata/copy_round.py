"""What a slave's copy of the tables works with: its source, and one round of requests to it."""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

from rmqkit.runtime.connection import Address

Then = Callable[[], None]


class GroupMembers(Protocol):
    """The addresses of live members of the group by broker id; `others` excludes this broker."""

    @property
    def members(self) -> Mapping[int, Address]: ...
    @property
    def others(self) -> Mapping[int, Address]: ...
    @property
    def is_masterless(self) -> bool: ...


class CopySource:
    """The broker from which the tables are copied, and the state of the copy."""

    def __init__(self, address: Address) -> None:
        self.address = address
        #: position in its changes, as it sent it; "" to ask for everything
        self.known = ""
        #: whether its log is known to be the same as this one
        self.belongs = False
        #: version of the leases that it has sent; -1: none
        self.leases_version = -1
        #: whether it is a master: it writes the log itself
        self.is_master = True
        #: pairs that this run of it has sent until now; None once it has sent all
        self.seen: set[str] | None = None
        #: whether it has more changes to send at once
        self.has_more = False


class CopyRound:
    """One round: the request 43, and the fetches of tables after its answer."""

    def __init__(self, source: CopySource) -> None:
        self.source = source
        #: when the request was sent, if the master was asked to hold it, else -1
        self.held_since_ms = -1
        #: offsets sent to the master with the request
        self.giving: dict[str, dict[int, int]] = {}
        #: fetches that follow
        self.steps: deque[Callable[[Then], None]] = deque()
