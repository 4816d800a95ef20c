"""A real cluster with the plug-in enabled by settings alone."""

from rmqkit.testing import factories

usage_cluster = factories.cluster(settings={"plugins": "usage", "plugin.usage.intervalMillis": 200})
usage_clean = factories.clean("usage_cluster")
