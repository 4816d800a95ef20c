"""Clusters on this machine.

- `layout`: what a cluster should be: its description, folders, names, ports and saved state.
- `launch`, `processes`, `restart`: start, find, signal and restart the node processes.
- `health`: queries running nodes: readiness, replication, roles, takeovers.
- `cluster`: the `Cluster` object that the commands of `rmqkit cluster` use.
"""

from rmqkit.cluster.cluster import Cluster, clusters, meant_cluster, running_clusters
from rmqkit.cluster.errors import ClusterError
from rmqkit.cluster.layout.description import Description

__all__ = [
    "Cluster",
    "ClusterError",
    "Description",
    "clusters",
    "meant_cluster",
    "running_clusters",
]
