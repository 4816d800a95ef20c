"""Requests of consumers except pulls: heartbeats, offsets, queue locks, and relayed calls."""
