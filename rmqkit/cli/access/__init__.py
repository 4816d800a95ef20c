"""Commands for users and access rules."""
