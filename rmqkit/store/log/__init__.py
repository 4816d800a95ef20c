"""The commit log: all records of a broker in files of equal size.

commit_log  appends and reads records
uniform_batch, batch_records  batches whose messages are encoded by column
files       a chain of files, each named by the offset of its first byte
flush       decides when to sync the log; group commit
scan, walk  read the log record by record
"""
