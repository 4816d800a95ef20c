"""NameServerView: the part of a name server that handlers and metrics use.

`NameServer` (`node.py`) implements it.
"""

from typing import Protocol

from rmqkit.config import NodeConfig
from rmqkit.nameserver.access import NameServerAccess
from rmqkit.nameserver.kv import KvTable
from rmqkit.nameserver.liveness import BrokerLiveness
from rmqkit.nameserver.notices import Notices
from rmqkit.nameserver.route_table import RouteTable
from rmqkit.runtime.atomic_file import AtomicFile
from rmqkit.runtime.connection import Outbox
from rmqkit.runtime.duties import Duties
from rmqkit.runtime.ports import Clock, Ports
from rmqkit.runtime.remoting import Remoting


class NameServerView(Protocol):
    """A name server as its handlers and metrics see it."""

    name: str
    ports: Ports
    clock: Clock
    duties: Duties
    outbox: Outbox
    remoting: Remoting
    #: the current settings; a live change replaces the object
    config: NodeConfig
    config_file: AtomicFile
    access: NameServerAccess
    routes: RouteTable
    kv: KvTable
    liveness: BrokerLiveness
    notices: Notices
    started_ms: int
    stopping: bool

    def use_config(self, config: NodeConfig) -> None:
        """Continue with these settings."""
