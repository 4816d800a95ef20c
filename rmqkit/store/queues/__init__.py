"""Consume queues: 20 bytes for each message of a queue, and their extensions.

table            all queues of an engine, by (topic, queue id)
consume_queue    one queue
load, flush      from the files at the start; back to the files
extension_table  queues with an extension (`enableConsumeQueueExt`)
extension        the extension file of one queue
"""
