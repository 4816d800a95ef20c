"""Which brokers a process holds. Each knows the others as its `neighbours`, for a local escape.

A broker is known by cluster, name and id, written as Apache does (`cluster_name_id`): two of a process never share it.

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
    identity = config.identity
    return BrokerKey(identity.broker_cluster_name, identity.broker_name, identity.broker_id)


class Container:
    def __init__(self) -> None:
        #: by identity as text, in the order in which they came
        self.brokers: dict[str, Broker] = {}

    def join(self, broker: "Broker") -> None:
        self.brokers[str(identity_of(broker.config))] = broker
        self._tell()

    def leave(self, broker: "Broker") -> None:
        self.brokers = {key: each for key, each in self.brokers.items() if each is not broker}
        broker.view.neighbours = []
        self._tell()

    def _tell(self) -> None:
        for broker in self.brokers.values():
            broker.view.neighbours = [each.view for each in self.brokers.values() if each is not broker]
