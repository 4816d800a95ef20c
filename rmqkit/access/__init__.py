"""Access control: who signed a request, and whether the rules allow it.

- `signature`: signs requests and verifies signatures.
- `model`: users, resources, actions and policies, in RocketMQ's text forms.
- `decision`: decides by the rules whether a user may do something, and why.
- `table`: users and rules of one cluster, saved and copied to slaves.
- `rules`: what the row of a request code demands of its caller.
- `caller`: who sent a request, and what it may do.
- `listeners`: what admits a peer on each port.
- `audit`: lines and counters of refusals and changes.
- `gate`: checks every request that a node receives, before its handler runs.
- `node_access`: what the access control of every kind of node has in common.

Nothing in this package does I/O. Source of the model: Apache's `auth` module, 5.5.0.
"""
