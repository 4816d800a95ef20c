"""Requests between the brokers of a group: HA binding, table copies, member changes."""
