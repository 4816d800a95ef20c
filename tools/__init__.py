"""What maintains the project and is not shipped: page generators, series of drills. Run from a checkout."""
