"""Replication: one log, several brokers.

replication   what the broker and its handlers use; the rest is reached through it
ha_server     the master's side of every HA connection: accepts slaves, sends the log, closes dead connections
ha_connection one slave's connection
members       which connections count as copies
acks          how many copies a put waits for, and the puts that wait
ha_client     the slave's side: finds the master and follows it; its states are in `ha_state`
divergence    whether the slave's log belongs to the master's, and the truncation of one that does not
tail_probe    compares the log's last record with an Apache master's record at the same offset
metadata*     the tables that are not in the log: topics, offsets, groups
"""
