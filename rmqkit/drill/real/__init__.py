"""Drills on real processes: driver, load, observation, the last reading."""
