"""Pipelines between topics and files, each a small module: `ingest`, `lake`, `compact`, `replay`, `copying`, `stats`.

Their functions take a Spark session first, tell of their progress through `on_progress` and return what they did as
plain data; `rmqkit pipeline` prints it. See docs/pipelines.md.
"""
