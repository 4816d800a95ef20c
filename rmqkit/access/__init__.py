"""Access control: who signed a request, and whether the rules allow it.

- `signature`: signs requests and verifies signatures.
- `model`: users, resources, actions and policies, in RocketMQ's text forms.
- `decision`: decides by the rules whether a user may do something, and why.
- `table`: users and rules of one cluster, saved and copied to slaves.
- `rules`: what the row of a request code demands of its caller.
- `gate`: checks every request that a node receives, before its handler runs.

Nothing in this package does I/O. Source of the model: Apache's `auth` module, 5.5.0.
"""
