"""JSON bodies, by area.

Each has `encode() -> bytes`, `decode(data)` and `pretty()`; see `base.Body`. The package re-exports
the public names of all its modules.
"""

# ruff: noqa: F403

from rmqkit.wire.bodies.access import *
from rmqkit.wire.bodies.base import *
from rmqkit.wire.bodies.clients import *
from rmqkit.wire.bodies.groups import *
from rmqkit.wire.bodies.heartbeat import *
from rmqkit.wire.bodies.lists import *
from rmqkit.wire.bodies.locks import *
from rmqkit.wire.bodies.offsets import *
from rmqkit.wire.bodies.pop import *
from rmqkit.wire.bodies.queues import *
from rmqkit.wire.bodies.register import *
from rmqkit.wire.bodies.replication import *
from rmqkit.wire.bodies.route import *
from rmqkit.wire.bodies.running_info import *
from rmqkit.wire.bodies.statistics import *
from rmqkit.wire.bodies.subscription import *
from rmqkit.wire.bodies.topics import *
from rmqkit.wire.bodies.versions import *
from rmqkit.wire.fastjson import MessageQueue as MessageQueue
