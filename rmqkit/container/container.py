"""The brokers of one process. Each knows its peers as `neighbours`, for a local escape.

A broker's key is cluster, name and id, written as Apache does (`cluster_name_id`); it is unique
within the process.

Source: `container/.../BrokerContainer.java`, `common/.../BrokerIdentity.getCanonicalName`.
"""

from typing import TYPE_CHECKING, NamedTuple

from rmqkit.config import NodeConfig

if TYPE_CHECKING:
    from rmqkit.broker.node import Broker


class BrokerKey(NamedTuple):
    cluster: str
    name: str
    broker_id: int

    def __str__(self) -> str:
        return f"{self.cluster}_{self.name}_{self.broker_id}"


def identity_of(config: NodeConfig) -> BrokerKey:
    """Return the key of the broker with this configuration."""
    identity = config.identity
    return BrokerKey(identity.broker_cluster_name, identity.broker_name, identity.broker_id)


class Container:
    """The brokers of one process; keeps `neighbours` of each broker up to date."""

    def __init__(self) -> None:
        #: by the text of their keys, in the order in which they joined
        self.brokers: dict[str, Broker] = {}

    def join(self, broker: "Broker") -> None:
        self.brokers[str(identity_of(broker.config))] = broker
        self._update_neighbours()

    def leave(self, broker: "Broker") -> None:
        self.brokers = {key: each for key, each in self.brokers.items() if each is not broker}
        broker.view.neighbours = []
        self._update_neighbours()

    def _update_neighbours(self) -> None:
        for broker in self.brokers.values():
            broker.view.neighbours = [each.view for each in self.brokers.values() if each is not broker]
