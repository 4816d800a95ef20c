"""The commit log: every record of a broker in files of one size.

commit_log  appends and reads
files       a chain of files, each named by the offset of its first byte
flush       when the log reaches the disk
scan, walk  read the log record by record
"""
