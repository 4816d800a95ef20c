"""The family `elections`: groups whose master is elected by controllers."""
