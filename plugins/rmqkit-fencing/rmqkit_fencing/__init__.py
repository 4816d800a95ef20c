"""Fencing epochs: each new owner of a queue lock gets a greater number, and offsets of an older owner are refused."""
