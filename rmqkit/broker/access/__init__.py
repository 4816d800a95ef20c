"""Access control of a broker: its parts, and what it sends to name servers."""
