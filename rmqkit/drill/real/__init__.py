"""Drills on real processes: driver, load, observation and the last reading."""
