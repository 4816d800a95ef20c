"""A scripted view of a cluster, for planning queries without a broker."""

from rmqkit.errors import PeerUnreachable
from rmqkit.spark.source.ranges import QueueKey
from rmqkit.spark.source.topics import TopicSnapshot


class FakeView:
    """Queues with their ranges [begin, end).

    Message n of a queue was stored at 1000 + 10·n ms, plus `stored_shift`.
    """

    def __init__(self, *, cluster="DefaultCluster", **queues):
        self.cluster = cluster
        self.queues = {}
        self.silent = {}
        self.missing = ()
        self.by_slave = set()
        self.closed = {}
        self.groups = {}
        self.commits = []
        self.commit_problems = []
        self.size = 100.0
        self.looks = 0
        self.measured = []
        self.down = False
        self.stored_shift = 0
        self.is_closed = False
        self.on_look = lambda: None
        self.put(**queues)

    def put(self, topic="T", **queues):
        """Set ranges of queues: `a0=(3, 10)` is queue 0 on broker `a`."""
        for name, ends in queues.items():
            self.queues[QueueKey(topic, name[0], int(name[1:]))] = ends

    def newest_ms(self, key):
        begin, end = self.queues[key]
        return self.stored_shift + 1000 + 10 * (end - 1) if end > begin else 0

    # --- View

    def look(self, known=()):
        self.looks += 1
        self.on_look()
        if self.down:
            raise PeerUnreachable("no name server answers", kind="connect", address="")
        shown = {
            key: ends
            for key, ends in sorted(self.queues.items())
            if (key.topic, key.broker) not in self.silent and key.topic not in self.missing
        }
        masters = {(key.topic, key.broker) for key in [*shown, *self.closed]}
        return TopicSnapshot(
            {key: begin for key, (begin, _) in shown.items()},
            {key: end for key, (_, end) in shown.items()},
            {key: self.newest_ms(key) for key in shown},
            frozenset(each for each in masters if each not in self.by_slave),
            dict(self.silent),
            tuple(self.missing),
            (self.cluster,) if shown else (),
            dict(self.closed),
        )

    def all_topics(self):
        return sorted({key.topic for key in self.queues} | {"orders"})

    def at_time(self, keys, time_ms):
        found = {}
        for key in keys:
            begin, end = self.queues[key]
            found[key] = min(end, max(begin, -(-(time_ms - self.stored_shift - 1000) // 10)))
        return found

    def of_group(self, group, keys):
        return {key: offset for key, offset in self.groups.get(group, {}).items() if key in set(keys)}

    def commit(self, group, ends):
        self.commits.append((group, dict(ends)))
        return list(self.commit_problems)

    def sizes(self, ranges):
        self.measured.append(list(ranges))
        return {each.key: self.size for each in ranges}

    def stored_ms(self, key, offset):
        begin, end = self.queues.get(key, (0, 0))
        return self.stored_shift + 1000 + 10 * offset if begin <= offset < end else None

    def close(self):
        self.is_closed = True
