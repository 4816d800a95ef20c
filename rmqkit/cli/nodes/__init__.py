"""Commands that manage clusters and nodes: start, stop, status, settings, health."""
