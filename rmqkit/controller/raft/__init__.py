"""The log of several controllers: the Raft algorithm with fixed peers, without any I/O.

    messages.py        what members send to one another, and positions in the log
    entry_log.py       the log in memory: entries behind a snapshot; committed, applied, durable
    progress.py        what a leader knows of one peer's log
    leader.py          the duties of a leader: replication, commits, leases, read barriers
    core.py            a member: terms, votes, roles; every message and every timer goes in here
    wire.py            messages as bytes
    file_format.py     the two files as bytes
    storage.py         the vote file and the log file on the disk port
    controller_log.py  the four of them together, behind the contract of `rmqkit.controller`

Start with `core.py`: its head lists what a member promises, and where the code follows the paper
("In Search of an Understandable Consensus Algorithm", extended version) or departs from it. The
style is that of etcd's raft: events go in, messages and writes come out, and a message that
promises something waits until the write that it promises is durable.
"""
