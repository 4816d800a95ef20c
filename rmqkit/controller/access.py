"""ControllerAccess: access control of a controller.

A controller knows two callers: the nodes of the cluster, which sign with the inner credentials
(`innerClientAuthenticationCredentials`), and the super user of `initAuthenticationUser`. The tables
of users at the brokers are not copied here.
"""

from rmqkit.access.node_access import NodeAccess
from rmqkit.config import NodeConfig
from rmqkit.runtime.ports import Ports
from rmqkit.runtime.remoting import Remoting


class ControllerAccess(NodeAccess):
    """The callers that a controller admits. Without authentication it admits all."""

    def __init__(self, ports: Ports, config: NodeConfig, remoting: Remoting) -> None:
        super().__init__(ports, config.access, remoting)
        if config.access.is_on:
            own = self.initial_accounts()
            self.check_requests(lambda: [own])
