"""Commands about clusters and nodes: start, stop, status, settings, health."""
