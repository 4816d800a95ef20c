"""Requests that carry messages: send, send back, pull, reply."""
