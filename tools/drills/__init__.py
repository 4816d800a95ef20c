"""Long series of drills: `make drills` on real clusters, `make simulate` on simulated ones."""
