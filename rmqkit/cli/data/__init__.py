"""Commands about messages, topics, groups and offsets."""
