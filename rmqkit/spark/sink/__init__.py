"""The Spark sink: rows become messages."""
