"""The context of a broker: the ports, duties, calls and settings that every part may use.

A part takes the context and, separately, the parts it works with. The context holds no part, no
table and no role, so a module that takes it depends on nothing else of the broker.
"""

from rmqkit.config import NodeConfig
from rmqkit.runtime.connection import Address, Outbox
from rmqkit.runtime.duties import Duties
from rmqkit.runtime.ports import Clock, Disk, Entropy, Log, Ports
from rmqkit.runtime.remoting import Remoting


class BrokerContext:
    """Ports, duties, calls and settings of one broker."""

    __slots__ = (
        "address",
        "address_text",
        "clock",
        "config",
        "disk",
        "duties",
        "entropy",
        "ha_address_text",
        "log",
        "outbox",
        "remoting",
    )

    def __init__(self, ports: Ports, duties: Duties, outbox: Outbox, config: NodeConfig, remoting: Remoting) -> None:
        self.clock: Clock = ports.clock
        self.disk: Disk = ports.disk
        self.entropy: Entropy = ports.entropy
        self.log: Log = ports.log
        self.duties = duties
        self.outbox = outbox
        self.remoting = remoting
        #: current settings. A live change replaces the object, so read it at the moment of use
        self.config = config
        network = config.network
        #: where clients and peers reach this broker
        self.address = Address(network.broker_ip1, network.listen_port)
        self.address_text = str(self.address)
        #: where slaves reach its HA listener
        self.ha_address_text = str(Address(network.broker_ip2, network.ha_listen_port))
