"""Makes `format("rocketmq")` known to Spark, which imports every top-level module called `pyspark_*` and registers its
`DefaultSource`. Nothing to import by hand."""

from rmqkit.spark.source.data_source import RocketMQSource as DefaultSource

__all__ = ["DefaultSource"]
