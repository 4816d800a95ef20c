"""Registers `format("rocketmq-store")` with Spark, as `pyspark_rmqkit` does for `rocketmq`."""

from rmqkit.spark.data_sources import StoreDataSource as DefaultSource

__all__ = ["DefaultSource"]
