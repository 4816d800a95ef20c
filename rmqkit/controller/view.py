"""ControllerView: the part of a controller (`node.py`) that handlers and metrics use."""

from collections.abc import Callable
from typing import Any, Protocol

from rmqkit.config import NodeConfig
from rmqkit.controller.contract import ControllerLog
from rmqkit.controller.decision_queue import Decide
from rmqkit.controller.group import ControllerGroup
from rmqkit.controller.heartbeats import HeartbeatTable
from rmqkit.controller.master_watch import MasterWatch
from rmqkit.controller.sets.table import BrokerSets
from rmqkit.runtime.atomic_file import AtomicFile
from rmqkit.runtime.calls import Call, Response
from rmqkit.runtime.ports import Clock, Ports


class ControllerView(Protocol):
    """A controller as its handlers and metrics see it."""

    name: str
    ports: Ports
    clock: Clock
    config: NodeConfig
    config_file: AtomicFile
    group: ControllerGroup
    sets: BrokerSets
    live: HeartbeatTable
    watch: MasterWatch
    log: ControllerLog
    use_config: Callable[[NodeConfig], None]

    def decide(self, call: Call[Any], decide: Decide) -> Response:
        """Answer a call by a decision, once it is committed."""
