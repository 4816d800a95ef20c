"""rmqkit: a RocketMQ-compatible message queue whose high availability can be seen to work.

Programs import the client from here: `Producer`, `PushConsumer`, `PullConsumer`, `Admin`,
`Message`, `sql`, and the types that they return. These are loaded on first use. `rmqkit.aio` has
the same names as coroutines, `rmqkit.errors` the exceptions.
"""

# ruff: noqa: F403, F405

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rmqkit.api import *

__version__ = "0.2.0"

__all__ = [
    "Admin",
    "LitePullConsumer",
    "Message",
    "MessageExt",
    "MessageQueue",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "SendResult",
    "SendStatus",
    "__version__",
    "sql",
]


def __getattr__(name: str) -> Any:
    # Nodes and the command line import `rmqkit`, too; they should not load the client.
    if name in __all__:
        return getattr(import_module("rmqkit.api"), name)
    raise AttributeError(f"module 'rmqkit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
