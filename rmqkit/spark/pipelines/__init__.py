"""Spark pipelines between topics and files, one small module each.

`ingest`, `lake`, `compact`, `replay`, `topic_copy` and `stats` each take a Spark session as their
first argument. They report progress through `on_progress` and return their results as plain data,
which `rmqkit pipeline` prints. See docs/pipelines.md.
"""
