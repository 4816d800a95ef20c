"""Simulated groups of the controller's Raft log, alone: faults, checks after each turn, defects.

simulation.py   one seed: a group in virtual time, its faults, its load
machine.py      one member with its disk: turns, power cuts, restarts
checks.py       what must hold, compared after each turn
defects.py      mistakes that are planted on purpose, and the check that must find each
__main__.py     `python -m tools.drills.raft --seeds 10000`
"""
