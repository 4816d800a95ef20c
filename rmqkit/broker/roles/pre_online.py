"""Pre-online: what a broker does between knowing who else of its group is alive and serving.

`start` is called when `Online` has become PRE_ONLINE, with at least one other member in `broker.roles.members`; `then` is
called once, with a sentence about how it went ("" is all well), and the broker is online. `stop` ends it without a word:
the broker stops, or isolates itself anew and will start it again.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rmqkit.broker.node import Broker

#: how it went, for people
Then = Callable[[str], None]


class PreOnline:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        #: what it is doing, "" when nothing
        self.stage = ""

    def start(self, then: Then) -> None:
        then("")

    def stop(self) -> None:
        self.stage = ""
