"""Power-loss tests for storage engines: recorded lives, disk images, checks after recovery."""
