"""Registers `format("rocketmq")` with Spark.

Spark imports every top-level module named `pyspark_*` and registers its `DefaultSource`. Users need
not import this module.
"""

from rmqkit.spark.data_sources import RocketMQSource as DefaultSource

__all__ = ["DefaultSource"]
