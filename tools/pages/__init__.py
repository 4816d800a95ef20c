"""Generators of the pages and tables of `docs/`; `tools/docs.py` lists them."""
