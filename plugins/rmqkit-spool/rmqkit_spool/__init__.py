"""Spool: an escape strategy that stores messages on disk until another master takes them."""
