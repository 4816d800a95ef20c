"""The load of timers, transactions and pop on real processes.

`table.py` makes the loads of a plan's services. Each runs in threads of this process, and leaves
rows as the simulated load does (`drill/services/`). Transactions also have producer processes that
are killed.
"""
