"""Spool: an escape strategy that keeps escaping messages on disk until another master takes them."""
