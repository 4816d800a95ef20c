"""Election: controllers decide which broker of a group is master (controller mode, RIP-44).

    election       the flow: id, registration, election, role; what the controllers say
    controllers    the leader, calls to it, heartbeats to all, the lease of a master
    identity       the files with this broker's id
    takeover       what an elected broker does before it serves
    sync_states    at the master: which members have every acknowledged message
    role_switch    what changes in a broker with its role

Epochs and the HA stream of controller mode are in `broker/replication`. With `enableControllerMode`
off, nothing of this package is built.

Source: `broker/.../controller/ReplicasManager.java`.
"""
