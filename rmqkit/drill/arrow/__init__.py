"""Histories as Arrow tables and Parquet files. Needs pyarrow."""
