"""Commands that handle messages, topics, groups and offsets."""
