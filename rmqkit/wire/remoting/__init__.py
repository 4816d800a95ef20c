"""Remoting commands as bytes: frames, headers in both formats, fast paths for sends and pulls."""
