"""HA frames: the stream of a master's log to its slaves, on a connection of its own.

stream   reports and pieces of the log
epochs   the same in controller mode, after a handshake with epochs
"""
