"""The event-driven core that every node is built on. Nothing here does I/O itself.

    node.py         the contract between a node and its driver: turns, and their order
    ports.py        what the driver provides: clock, disk, random numbers, log
    connection.py   connections, and the outbox of network effects
    remoting.py     requests and responses over frame connections
    remoting_node.py  what name server and controller share
    live_config.py  the requests that read and change settings of a running node
    names.py        validates names and addresses from the wire
    calls.py        requests and responses as values; the table of handlers
    waiters.py      tables of parked calls
    duties.py       background work by due time
    states.py       state machines with a table of legal moves
    atomic_file.py  small files that are replaced as a whole
    kept.py         the former name of `atomic_file`, for plug-ins

Two drivers run nodes: `rmqkit.shell` (sockets and files) and `rmqkit.sim` (virtual time).
"""
