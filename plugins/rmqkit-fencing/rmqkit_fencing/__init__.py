"""Fencing epochs for queue locks: each new owner of a queue gets a greater number.

Brokers refuse offsets from an older owner.
"""
