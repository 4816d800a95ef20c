"""Topic usage: how many messages and about how many bytes each topic of a broker receives."""
