"""Clusters on this machine: what they should be, the processes that run them, and what those do."""

from rmqkit.cluster.cluster import Cluster, clusters, meant_cluster, running_clusters
from rmqkit.cluster.description import Description
from rmqkit.cluster.errors import ClusterError, NoSuchCluster, UsageProblem

__all__ = [
    "Cluster",
    "ClusterError",
    "Description",
    "NoSuchCluster",
    "UsageProblem",
    "clusters",
    "meant_cluster",
    "running_clusters",
]
