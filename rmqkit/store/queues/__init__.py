"""Consume queues: a 20-byte unit for each message of a queue, and their extensions.

table            all queues of an engine, by (topic, queue id)
consume_queue    one queue
batch_queue      one queue of a BatchCQ topic
batch_put        puts of a turn that stand for several records
make_table       makes the table of the kind that the settings ask for
load             reads the queues from their files at a start
flush            writes and syncs them, and updates the checkpoint
extension_table  queues with an extension (`enableConsumeQueueExt`)
extension        the extension file of one queue
"""
