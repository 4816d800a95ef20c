"""Several brokers in one process (RIP-31): who they are, and the port by which they are added and removed."""

from rmqkit.container.container import BrokerKey, Container
from rmqkit.container.node import BrokerSummary, ContainerNode

__all__ = ["BrokerKey", "BrokerSummary", "Container", "ContainerNode"]
