"""Replication: one log, several brokers.

A slave reads from the top down; a master has the second half.

    replication    what the broker and its handlers use; the rest is reached through it
    ha_client      the slave's side: finds the master and follows it; its states are in `ha_state`
    divergence     whether the slave's log belongs to the master's
    truncation     cuts off what the master never had
    log_tail       what tells logs apart: their last bytes, and the start of their broker
    tail_probe     compares the log's last record with an Apache master's record at the same offset
    member_calls   what the members of a group ask each other, and the answers
    metadata       copies the tables that are not in the log; `metadata_pages` fetches whole ones

    ha_server      accepts slaves, sends them the log, closes dead connections
    ha_connection  one slave's connection
    members        which connections count as copies
    acks           how many copies a put waits for, and the puts that wait
    metadata_server  serves the tables to slaves
"""
