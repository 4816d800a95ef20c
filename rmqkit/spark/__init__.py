"""RocketMQ topics for Spark: data sources `rocketmq` and `rocketmq-store`, pipelines, the audit of drills; extra `[spark]`.

Nothing of Spark is imported before it is asked for: workers import this package for each task's reader.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rmqkit.spark.java import JavaMissing
    from rmqkit.spark.sessions import session

#: name -> module that has it
_HOMES = {"JavaMissing": "rmqkit.spark.java", "session": "rmqkit.spark.sessions"}

__all__ = ["JavaMissing", "session"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'rmqkit.spark' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
