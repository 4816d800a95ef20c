"""Describes the diagrams of the pages of "Understand"; `tools/diagrams.py` draws them.

Each is read from the code that it shows, which the comments name: change both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from tools.diagrams import Area, Arrow, Box, Exchange, Flow, Step

# rmqkit/runtime/node.py, rmqkit/shell/loop.py, Broker.settle in rmqkit/broker/node.py
TURN = Exchange(
    "One turn: the driver calls the node, the node writes once, and the driver sends what is in the outbox",
    ("driver", "node", "store"),
    (
        Step("driver", "driver", "set the clock"),
        Step("driver", "node", "done: the disk has finished"),
        Step("driver", "node", "opened, received,\ndrained, closed"),
        Step("node", "node", "handlers append and park answers"),
        Step("driver", "node", "run_due"),
        Step("driver", "node", "settle"),
        Step("node", "store", "one write for all appends"),
        Step("store", "node", "queues are extended", is_reply=True),
        Step("node", "node", "feed slaves, or report to the master"),
        Step("node", "node", "answer the puts, wake waiting pulls"),
        Step("driver", "driver", "flush the outbox: one send per connection"),
    ),
)

# rmqkit/broker/puts/puts.py, rmqkit/broker/replication/{acks,ha_server,ha_client}.py
PUT = Exchange(
    "A put of a SYNC_MASTER with inSyncReplicas 2: it is answered when the faster slave has reported its offset",
    ("producer", "master", "slave 1", "slave 2"),
    (
        Step("producer", "master", "send"),
        Step("master", "master", "append, park the answer"),
        Step("master", "master", "end of the turn: one write"),
        Step("master", "slave 1", "piece of the log"),
        Step("master", "slave 2", "piece of the log"),
        Step("slave 1", "slave 1", "append; one write"),
        Step("slave 1", "master", "report: end of its log", is_reply=True),
        Step("master", "master", "2 copies: the wait ends\n(SYNC_FLUSH: and the sync)"),
        Step("master", "producer", "SEND_OK", is_reply=True),
        Step("slave 2", "slave 2", "append; one write"),
        Step("slave 2", "master", "report: end of its log", is_reply=True),
    ),
    gap=175,
)

# Roles in rmqkit/broker/roles/__init__.py, rmqkit/broker/roles/acting_master.py
ROLES = Flow(
    "A broker becomes isolated, pre-online and online; online slaves act for a lost master",
    {
        "isolated": Box(0, 0, "isolated\nnot registered,\nrefuses clients"),
        "pre-online": Box(1, 0, "pre-online\ncopies newer\nprogress"),
        "online": Box(2, 0, "online\nregistered,\nserves clients", is_strong=True),
        "master": Box(0, 2.4, "master\nid 0: takes sends"),
        "slave": Box(1, 2.4, "slave\nserves reads"),
        "acting": Box(2, 2.4, "acting\nreads, offsets,\nlocks, delays", is_strong=True),
    },
    (
        Arrow("isolated", "pre-online", "members\nare known"),
        Arrow("pre-online", "online", "has their\nprogress"),
        Arrow("isolated", "online", "no other member is alive", bend=-32),
        Arrow("online", "isolated", "stalled, or removed by a name server", bend=32),
        Arrow("slave", "acting", "no master, smallest id alive", bend=-32),
        Arrow("acting", "slave", "a smaller id is alive, isolated, or no name server", bend=32),
    ),
    cell=(238, 90),
    size=(136, 66),
    areas=(Area("role of an online broker", ("master", "slave", "acting"), above=66, below=52),),
)

# rmqkit/broker/roles/{pre_online,reverse_sync}.py
RETURN = Exchange(
    "A returning master copies progress from each member, here the acting slave, before it registers",
    ("name server", "returning master", "acting slave"),
    (
        Step("returning master", "returning master", "isolated: refuses clients"),
        Step("returning master", "name server", "901: who is alive?"),
        Step("name server", "returning master", "the members", is_reply=True),
        Step("returning master", "returning master", "pre-online: asks all members at once"),
        Step("returning master", "acting slave", "906: the master is back"),
        Step("acting slave", "acting slave", "stops delivering delays"),
        Step("acting slave", "returning master", "end of its log, CRC32", is_reply=True),
        Step("acting slave", "returning master", "HA connection (2 s at most)"),
        Step("returning master", "acting slave", "45: progress of delay levels?"),
        Step("acting slave", "returning master", "once its puts are answered\n(1 s at most)", is_reply=True),
        Step("returning master", "acting slave", "43: consumer offsets?"),
        Step("acting slave", "returning master", "offsets, times of resets", is_reply=True),
        Step("acting slave", "returning master", "newer offsets (2 s at most)"),
        Step("returning master", "name server", "register: online"),
        Step("name server", "acting slave", "905: the smallest id has changed"),
        Step("acting slave", "acting slave", "stops acting: slave"),
    ),
    gap=235,
)

# rmqkit/spark/source/readers.py, rmqkit/spark/pipelines/ingest.py
INGEST = Exchange(
    "A batch of an ingest: the executors read and write files, and one commit of the Delta table adds them",
    ("brokers", "executors", "driver", "lake"),
    (
        Step("driver", "brokers", "where do the queues end?"),
        Step("brokers", "driver", "offsets", is_reply=True),
        Step("driver", "lake", "checkpoint: the\noffsets of batch N"),
        Step("driver", "executors", "a range of each queue"),
        Step("executors", "brokers", "pulls, sent ahead"),
        Step("brokers", "executors", "messages", is_reply=True),
        Step("executors", "lake", "Parquet files by topic and hour"),
        Step("executors", "driver", "files, statistics", is_reply=True),
        Step("driver", "lake", "commit: files\nand offsets"),
        Step("driver", "lake", "checkpoint:\nbatch N is done"),
        Step("driver", "driver", "killed before the commit: the batch runs again\nafter it: nothing is written again"),
    ),
    gap=175,
)

PICTURES: Mapping[str, Exchange | Flow] = {
    "turn": TURN,
    "put": PUT,
    "roles": ROLES,
    "return": RETURN,
    "ingest": INGEST,
}


def pages() -> Mapping[str, Callable[[], str]]:
    """The files of `docs/` with these diagrams, and what draws each."""
    return {f"pictures/{name}.svg": partial(picture.svg, name) for name, picture in PICTURES.items()}
