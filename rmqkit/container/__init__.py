"""Several brokers in one process (RIP-31).

`Container` knows the brokers of the process; `ContainerNode` listens on the port by which brokers
are added and removed.
"""

from rmqkit.container.container import BrokerKey, Container
from rmqkit.container.node import BrokerSummary, ContainerNode

__all__ = ["BrokerKey", "BrokerSummary", "Container", "ContainerNode"]
