"""The Spark data source `rocketmq-store`: store folders without a broker."""
