"""The Spark data source `rocketmq`: planning, reading and streaming topics."""
