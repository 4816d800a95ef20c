"""Requests of consumers besides pulls: heartbeats, offsets, queue locks, calls relayed to clients."""
