"""The table of a lake. `pipelines` fills it (`batches`), reads it (`lake`), merges its files.

- `lake_table`, `iceberg_table`: the table's state, and its commits.
- `transactions`: which offsets and batches the table has.
- `data_files`: writes and reads data files, also in Spark's tasks, and takes their statistics.
- `storage`: places, and what can go wrong.
"""
