"""Replication: one log, several brokers.

The first half is a slave's, the second a master's. The tables that are not in the log are in `broker/metadata`.

    replication    what the broker and its handlers use; the rest is reached through it
    ha_client      the slave's side: finds the master and follows it; its states are in `ha_state`
    divergence     whether the slave's log belongs to the master's
    truncation     cuts off what the master never had
    log_tail       what tells logs apart: their last bytes, and the start of their broker
    tail_probe     compares the log's last record with an Apache master's record at the same offset
    member_calls   what the members of a group ask each other, and the answers

    ha_server      accepts slaves, sends them the log, closes dead connections
    ha_connection  one slave's connection
    members        which connections count as copies
    acks           how many copies a put waits for, and the puts that wait
"""
