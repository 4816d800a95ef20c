"""Drills on simulated clusters: driver, load, faults and plans."""
