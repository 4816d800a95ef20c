"""The soak test of the ingest: under faults, a lake gets each of millions of offsets exactly once.

`make soak` (`python -m tests.soak`) runs all cases and prints its findings as JSON.
`tests/spark/test_soak.py` runs each case with a few thousand messages.
"""
