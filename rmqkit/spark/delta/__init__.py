"""The Delta table of a lake. `pipelines` fills it (`batches`), reads it (`lake`), merges its files.

- `lake_table`: the table's state, and its commits.
- `transactions`, `coverage`: which offsets and batches the table has.
- `lake_files`: data files that Spark's tasks write, and their statistics.
- `storage`, `times`, `errors`: places, hours, and what can go wrong.
"""
