"""rmqkit: a RocketMQ-compatible message queue whose high availability can be seen to work."""

__version__ = "0.1.0"
