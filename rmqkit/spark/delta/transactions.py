"""What a lake knows besides its files: application transactions in the log of its Delta table.

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
union counts (`coverage`).

deltalake answers for one id at a time and reads the log for each answer. `TransactionLog` lists all
ids in one pass over the newest checkpoint and the commits after it.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, unquote

from rmqkit.spark.delta import coverage
from rmqkit.spark.delta.errors import LakeDamaged
from rmqkit.spark.delta.storage import LakeStorage
from rmqkit.spark.source.ranges import OffsetRange, QueueKey

if TYPE_CHECKING:
    import pyarrow.fs

LOG = "_delta_log"
OURS = "rmqkit:"
QUEUE, RANGE, CLUSTER = f"{OURS}queue", f"{OURS}range", f"{OURS}cluster"
#: a classic checkpoint, whole or in parts: version, part, parts
CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet")
#: how delta-rs and Delta begin a line with a txn action
TXN_LINE = b'{"txn"'
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
                tables = [parquet.read_table(part, columns=["txn"], filesystem=files) for part in parts]
                found = [txn for table in tables for txn in table["txn"].drop_null().to_pylist()]
                self._version, self._found = newest, {txn["appId"]: int(txn["version"]) for txn in found}
        while self._version < version:
            with files.open_input_stream(f"{LOG}/{self._version + 1:020}.json") as stream:
                for line in stream.read().splitlines():
                    if line.startswith(TXN_LINE):
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
    whole = [(of, paths) for (of, parts), paths in found.items() if len(paths) == parts]
    return max(whole, default=(-1, []))


class Ledger(NamedTuple):
    """What the transactions of a table come to.

    `batches` maps query id → last committed batch, `clusters` maps topic → names of the clusters
    that it was read from.
    """

    batches: dict[str, int]
    covered: coverage.Covered
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
            case _ if not app.startswith(OURS):
                batches[app] = version
    return Ledger(batches, coverage.added({}, ranges), clusters)


def encode(
    known: Ledger, ranges: Iterable[OffsetRange], clusters: Mapping[str, Iterable[str]], query: str | None, batch: int
) -> dict[str, int]:
    """Return the transactions of a batch that covers `ranges`, on top of what is known.

    A range that continues an interval moves its end; any other range is an interval of its own.
    """
    made: dict[str, int] = {}
    if query is not None:
        made[query] = max(batch, known.batches.get(query, batch))
    for each in ranges:
        if not each.size:
            continue
        intervals = known.covered.get(each.key, [])
        begin, end = next(((b, e) for b, e in intervals if b <= each.begin <= e), (each.begin, each.end))
        last = max([each.end, *(end for _, end in intervals)])
        made[_app(QUEUE, each.key)] = last
        made[f"{_app(RANGE, each.key)}/{begin}"] = max(each.end, end)
    for topic, names in clusters.items():
        for name in names:
            if name not in known.clusters.get(topic, ()):
                made[f"{CLUSTER}/{quote(topic, safe='')}/{quote(name, safe='')}"] = 0
    return made


def _app(kind: str, key: QueueKey) -> str:
    return "/".join([kind, *(quote(str(part), safe="") for part in key)])
