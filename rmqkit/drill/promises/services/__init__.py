"""The promises about timers, transactions and pop. They apply if the plan has that load."""
