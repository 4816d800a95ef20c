"""The index: finds records by topic and key.

index  collects entries after the puts, and answers queries
files  the index files of a store, filled in batches
file   one index file, byte for byte in RocketMQ's format
"""
