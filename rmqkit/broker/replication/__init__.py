"""Replication: the brokers of a group hold copies of one commit log.

The first block is shared code and the slave's side, the second block is the master's side. The
tables that are not in the log (topics, groups, offsets) are copied by `broker/metadata`.

    replication    the facade: what the broker and its handlers use
    ha_client      connects a slave to its master and appends what the master sends
    ha_state       the states of `ha_client`
    divergence     decides whether the slave's log is the beginning of the master's
    truncation     removes the end of a slave's log that its master never had
    log_tail       the checksum of a log's last bytes, and the id of a broker's start
    tail_probe     compares the log's last record with an Apache master's record at the same offset
    member_calls   the requests between members of a group, and their answers

    ha_server      accepts slaves, sends them the log, closes dead connections
    ha_connection  one slave's connection
    members        decides which connections count as copies
    acks           decides how many copies a put needs, and parks the puts that wait

    epochs         which part of the log was written under which master (controller mode)
    epoch_client   the slave's side of controller mode
    epoch_server   the master's side of controller mode
"""
