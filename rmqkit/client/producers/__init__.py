"""The producer side of the client core: sends, requests, compression and traces."""
