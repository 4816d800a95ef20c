"""Takeovers with pending timers, half messages and popped messages, beside Apache's.

`load` prepares what is pending and works on it while the master is away. `__main__` runs sessions
of ours and of Apache's in pairs and counts. `page` renders `docs/comparison.md`.
"""
