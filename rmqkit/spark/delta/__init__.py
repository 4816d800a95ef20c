"""The table of a lake: its state and commits, its data files, and what can go wrong."""
