"""The Delta table of a lake. `pipelines` fills it (`batches`), reads it (`lake`), merges its files.

- `lake_table`: the table's state, and its commits.
- `transactions`, `coverage`: which offsets and batches the table has.
- `data_files`: writes and reads data files, and takes their statistics.
- `lake_files`: lets Spark's tasks write and read data files.
- `storage`, `times`, `errors`: places, hours, and what can go wrong.
"""
