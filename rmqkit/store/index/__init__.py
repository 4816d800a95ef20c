"""The index: finds records by topic and key.

index       collects entries after the puts, and answers queries
key_hashes  the hashes of a record's keys, for one record or by column
entry_batch  entries by column, on their way into a file
files       the index files of a store, filled in batches
file        one index file, byte for byte in RocketMQ's format
"""
