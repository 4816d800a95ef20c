"""Several brokers in one process (RIP-31): who they are, and the port by which they are added and removed."""

from rmqkit.container.container import Container, Identity
from rmqkit.container.node import ContainerNode, Shown

__all__ = ["Container", "ContainerNode", "Identity", "Shown"]
