"""Old name of `rmqkit.cli.cluster_lookup`, kept for commands of plug-ins."""

from rmqkit.cli.cluster_lookup import find_namesrv, local_cluster

__all__ = ["find_namesrv", "local_cluster"]
