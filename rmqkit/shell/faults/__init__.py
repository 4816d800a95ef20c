"""Transport faults for drills: isolate a node without closing its connections."""
