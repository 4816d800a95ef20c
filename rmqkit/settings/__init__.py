"""The table of settings, and the sections that it feeds."""
