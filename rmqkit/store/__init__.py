"""The message store of a broker: storage engines behind one contract.

contract             what an engine offers the broker: types and the `StorageEngine` protocol
engines, plugin      the built-in engines by name, and their registration
mapped               engine `mapped`: RocketMQ's files; connects the parts below
memory, heap_disk    engine `memory`: the same engine on an in-memory disk
log/                 the commit log: append, write, sync, scan
queues/              consume queues and their extensions
index/               finds records by topic and key
queue_reader         which messages one pull gets
batch_reader         the same for a queue of a BatchCQ topic
dispatch_limit       how many replicated records a turn adds to the queues
timer_log            the index of timer messages on disk
recovery             from the files on disk to a usable store
truncation           removes the end of the log; closes the store
retention            removes expired files
checkpoint           what is durable, for the next recovery
steps                long work in bounded steps
"""

from rmqkit.store.engines import ENGINES

__all__ = ["ENGINES"]
