"""The load of timers, transactions and pop: its scripts, and the rows that it leaves in a history.

`scripts.py` says what each client does when, by the plan's seed. `service_rows.py` records what
happened. Both are shared by drills on real and on simulated clusters.
"""
