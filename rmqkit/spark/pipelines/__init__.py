"""Spark pipelines between topics and files, one small module each; see docs/pipelines.md.

They report progress through `on_progress` and return plain data, which `rmqkit pipeline` prints.
"""
