"""Which offsets and batches a lake has: application transactions in the log of its Delta table.

A Delta commit may carry `txn` actions: an application id with a version. Checkpoints of the log
keep the newest version of each id, whatever else they drop, and compaction and vacuum leave them
alone. If two commits made from the same version of a table touch one id, Delta refuses the second.
rmqkit writes them in the commit of each batch:

    QUERY                                query id → its last committed batch
    rmqkit:queue/TOPIC/BROKER/QUEUE      one past the last covered offset of the queue
    rmqkit:range/TOPIC/BROKER/QUEUE/BEGIN    end of a covered interval that begins at BEGIN
    rmqkit:cluster/TOPIC/NAME            0: the topic was read from this cluster

A batch touches the `queue` id of each of its queues. Therefore of two batches with a queue in
common that run at once, only one is committed (`lake_table`). Intervals may overlap or touch; their
union counts.

The transactions say which offsets were read, the files which rows exist. An offset may be covered
without a row: a tag filter left the message out, or the broker has no message at that offset.

deltalake answers for one id at a time and reads the log for each answer. `TransactionLog` lists all
ids in one pass over the newest checkpoint and the commits after it.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, unquote

from rmqkit.spark.delta.storage import LakeDamaged, LakeStorage
from rmqkit.spark.source.ranges import OffsetRange, QueueKey

if TYPE_CHECKING:
    import pyarrow.fs

LOG = "_delta_log"
#: a classic checkpoint, whole or in parts: version, part, parts
CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet")
TRIES_MAX = 3


class TransactionLog:
    """The transactions of a table. It keeps what it has read and reads only newer commits."""

    def __init__(self, storage: LakeStorage) -> None:
        self._storage = storage
        self._version = -1
        self._found: dict[str, int] = {}

    def at(self, version: int) -> dict[str, int]:
        """Return application id → version of all commits up to this version of the table.

        Raises LakeDamaged if a commit of the log is missing.
        """
        for tries_left in reversed(range(TRIES_MAX)):
            try:
                self._read_on(version)
                break
            except FileNotFoundError as error:
                # Delta's own clean-up may remove a commit after a newer checkpoint was written.
                if not tries_left:
                    raise LakeDamaged(f"{self._storage.uri}/{LOG}: {error}") from None
        return dict(self._found)

    def _read_on(self, version: int) -> None:
        from pyarrow import parquet

        files = self._storage.files()
        if version < self._version:
            self._version, self._found = -1, {}
        if version - self._version > 1:
            newest, parts = _checkpoint(files, version)
            if newest > self._version:
                found = parquet.read_table(parts, columns=["txn"], filesystem=files)["txn"].drop_null().to_pylist()
                self._version, self._found = newest, {txn["appId"]: int(txn["version"]) for txn in found}
        while self._version < version:
            with files.open_input_stream(f"{LOG}/{self._version + 1:020}.json") as stream:
                for line in stream.read().splitlines():
                    if line.startswith(b'{"txn"'):  # as delta-rs and Delta write it
                        txn = json.loads(line)["txn"]
                        self._found[txn["appId"]] = txn["version"]
            self._version += 1


def _checkpoint(files: "pyarrow.fs.FileSystem", version: int) -> tuple[int, list[str]]:
    """Return version and files of the newest whole checkpoint up to `version`, or (-1, [])."""
    from pyarrow.fs import FileSelector

    found: dict[tuple[int, int], list[str]] = {}
    for info in files.get_file_info(FileSelector(LOG)):
        if (name := CHECKPOINT.fullmatch(info.base_name)) and int(name[1]) <= version:
            found.setdefault((int(name[1]), int(name[3] or 1)), []).append(info.path)
    return max(((of, paths) for (of, parts), paths in found.items() if len(paths) == parts), default=(-1, []))


# --- what the transactions come to

#: half-open intervals [begin, end) of offsets, ascending, neither overlapping nor touching
Covered = dict[QueueKey, list[list[int]]]


def added(covered: Covered, parts: Iterable[OffsetRange]) -> Covered:
    """Return the coverage extended by these ranges."""
    result = dict(covered)
    for each in parts:
        if each.size:
            joined: list[list[int]] = []
            for begin, end in sorted([*result.get(each.key, []), [each.begin, each.end]]):
                if joined and begin <= joined[-1][1]:
                    joined[-1] = [joined[-1][0], max(joined[-1][1], end)]
                else:
                    joined.append([begin, end])
            result[each.key] = joined
    return dict(sorted(result.items()))


def common(covered: Covered, parts: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return the parts of the ranges that are covered."""
    return [
        each._replace(begin=max(begin, each.begin), end=min(end, each.end))
        for each in parts
        for begin, end in covered.get(each.key, [])
        if begin < each.end and each.begin < end
    ]


class Ledger(NamedTuple):
    """What the transactions of a table come to.

    `batches` maps query id → last committed batch, `clusters` maps topic → names of the clusters
    that it was read from.
    """

    batches: dict[str, int]
    covered: Covered
    clusters: dict[str, list[str]]


def decode(transactions: Mapping[str, int]) -> Ledger:
    batches: dict[str, int] = {}
    ranges: list[OffsetRange] = []
    clusters: dict[str, list[str]] = {}
    for app, version in transactions.items():
        kind, *names = [unquote(part) for part in app.split("/")]
        match kind, names:
            case "rmqkit:range", [topic, broker, queue, begin]:
                ranges.append(OffsetRange(topic, broker, int(queue), int(begin), version))
            case "rmqkit:cluster", [topic, name]:
                clusters[topic] = sorted([*clusters.get(topic, []), name])
            case _ if not app.startswith("rmqkit:"):
                batches[app] = version
    return Ledger(batches, added({}, ranges), clusters)


def encode(
    known: Ledger, ranges: Sequence[OffsetRange], clusters: Mapping[str, Iterable[str]], query: str | None, batch: int
) -> dict[str, int]:
    """Return the transactions that a batch adds to those in `known`.

    `ranges` are the offsets that the batch covers, `batch` is its number in the query.
    """
    made = {} if query is None else {query: max(batch, known.batches.get(query, batch))}
    covered = added(known.covered, ranges)
    for key in dict.fromkeys(each.key for each in ranges if each.size):
        place = "/".join(quote(str(part), safe="") for part in key)
        made[f"rmqkit:queue/{place}"] = covered[key][-1][1]
        changed = [each for each in covered[key] if each not in known.covered.get(key, [])]
        made |= {f"rmqkit:range/{place}/{begin}": end for begin, end in changed}
    for topic, names in clusters.items():
        for name in names:
            if name not in known.clusters.get(topic, ()):
                made[f"rmqkit:cluster/{quote(topic, safe='')}/{quote(name, safe='')}"] = 0
    return made
