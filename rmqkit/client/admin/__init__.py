"""Administration from the client core: topics, groups, offsets, messages and statistics."""
