"""The consumer side of the client core: push and pull consumers, rebalance, offsets, redelivery."""
