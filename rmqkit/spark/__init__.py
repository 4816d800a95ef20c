"""RocketMQ for PySpark: the data sources `rocketmq` and `rocketmq-store`. Needs `rmqkit[spark]`.

Example:
    Read a topic as a table:

        from rmqkit.spark import session

        spark = session("orders")
        orders = spark.read.format("rocketmq").option("subscribe", "orders").load()
        orders.groupBy("tags").count().show()

Submodules:

- `sessions`, `java`, `probe`: start a Spark session, find a Java for it, check that both work.
- `forks`: forks Spark's Python processes with their imports done.
- `package`: packs what executors need whose machines have no rmqkit.
- `options`, `option_kinds`, `tables`: the options of a query, and of a table made in SQL.
- `data_sources`: the classes that Spark instantiates for a query.
- `columns`, `decode`, `decode_json`: the columns of a message; records to Arrow batches.
- `link`: a worker's connection to one node.
- `source` reads topics in batches and streams, `sink` writes them, `store` reads store folders.
- `delta`, `pipelines`, `audit`: the table of a lake, the jobs of `rmqkit pipeline`, the audit of
  drills.

Spark's workers import this package for every task. Therefore it imports a submodule, and with it
Spark, only when one of its names is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rmqkit.spark.java import JavaMissing
    from rmqkit.spark.sessions import session
    from rmqkit.spark.sink.pace import serve_pace

#: Public name -> module that defines it.
_HOMES = {
    "JavaMissing": "rmqkit.spark.java",
    "serve_pace": "rmqkit.spark.sink.pace",
    "session": "rmqkit.spark.sessions",
}

__all__ = ["JavaMissing", "serve_pace", "session"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'rmqkit.spark' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
