"""Clusters on this machine: what they should be, the processes that run them, and what those do."""

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
