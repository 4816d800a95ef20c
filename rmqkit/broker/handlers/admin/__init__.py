"""Requests of administrators: topics, groups, settings, queues, statistics."""
