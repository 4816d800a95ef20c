"""Transport faults for drills: a node's connections are held back without being closed."""
