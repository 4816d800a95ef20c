"""The table of settings, and the sections of a node's configuration that it fills."""
