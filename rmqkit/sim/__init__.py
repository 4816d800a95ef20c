"""A deterministic simulator for whole clusters: virtual time, network and disks from one seed.

world            the event heap, the nodes, and the faults that a test can inject
process          one simulated process: a node and its turns
net              listeners, dials, and the links between nodes
ends             the two ends of one TCP connection
tls_ends         the same with TLS
disk             the disk port in virtual time
folder           a node's files: their content, and the part that survives a power cut
cluster          name servers, brokers and clients in one world, with two workloads
elected_cluster  a cluster whose controllers elect the master
users            the users of a cluster with access control
"""
