"""The limits of the name server's tables. `rmqkit.runtime.names` validates names and addresses.

Apache's name server has no limits. These are far above the needs of a working cluster. They keep
runaway clients from growing the tables without end. Each limit has a defined answer (see
`registration.py`, `kv.py`).
"""

from typing import NamedTuple


class TableLimits(NamedTuple):
    """The limits of the tables.

    Beyond `topics_max` and `topic_queues_max` a registration leaves new topics out. Beyond any
    other limit the request is refused.
    """

    topics_max: int = 100_000
    #: entries of queues (one per topic and broker name), of all topics together
    topic_queues_max: int = 1_000_000
    #: addresses of all groups together
    brokers_max: int = 10_000
    group_members_max: int = 100
    filter_servers_max: int = 100
    #: KV entries of all namespaces together
    kv_entries_max: int = 100_000
    kv_namespaces_max: int = 1000
    #: characters of all namespaces, keys and values together, counted per entry
    kv_size_max: int = 8 * 1024 * 1024
