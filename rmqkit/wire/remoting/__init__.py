"""Remoting commands as bytes: frames, headers in both forms, and fast paths for sends and pulls."""
