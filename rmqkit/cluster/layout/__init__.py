"""The layout of a cluster: its description, folders, names, ports and saved state."""
