"""What a cluster is: its description, node folders, names, ports and saved state."""
