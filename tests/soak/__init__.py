"""The long test of the pipeline: millions of messages, through every trouble, each offset exactly once in the lake.

`make soak` (`python -m tests.soak`) runs it whole and prints its findings as JSON; `tests/spark/test_soak.py` runs
each case with some thousand messages.
"""
