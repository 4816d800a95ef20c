"""The broker sets that a controller decides about.

table      members, masters, epochs and SyncStateSets of all sets
events     what a decision changes: the entries of the log
decisions  request and table in, answer and events out
election   which live member becomes master
"""
