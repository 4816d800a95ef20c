"""Makes lakes in the format of rmqkit 0.2: Parquet files, and a log of numbered JSON entries."""

import json
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as parquet
from deltalake import Schema

from rmqkit.spark.source import ranges
from tests.spark.lakes import NOON, NOON_MS, QUERY, arrow_rows


class OldLakeMaker:
    """A lake that grows by one entry at a time."""

    def __init__(self, path):
        self.path = path
        self.number = 0
        self.files = []
        (path / "_lake" / "log").mkdir(parents=True)

    def batch(self, *parts, at=NOON, clusters=("c",), more=(), query=QUERY):
        """Add a batch of rows, a file for each topic, as an ingest did."""
        rows = arrow_rows(*parts, at=at)
        for name in more:
            rows = rows.append_column(name, pa.array(range(rows.num_rows), pa.int64()))
        files = [self._file(rows, topic, at.strftime("%Y-%m-%d-%H")) for topic in sorted({each.topic for each in parts})]
        self.files += files
        self.entry(
            kind="batch",
            query=query,
            batch=self.number,
            begin=ranges.nested({each.key: each.begin for each in parts}, clusters),
            end=ranges.nested({each.key: each.end for each in parts}, clusters),
            clusters={each.topic: list(clusters) for each in parts},
            rows=rows.num_rows,
            files=files,
            schema=Schema.from_arrow(rows.schema).to_json(),
        )
        return files

    def compaction(self, replaces, *parts, at=NOON):
        files = [self._file(arrow_rows(*parts, at=at), parts[0].topic, at.strftime("%Y-%m-%d-%H"))]
        self.files = [file for file in self.files if file not in replaces] + files
        self.entry(kind="compaction", replaces=[file["path"] for file in replaces], files=files)
        return files

    def entry(self, **fields):
        self.number += 1
        content = {"format": 1, "written_ms": NOON_MS, **fields}
        self.log(f"{self.number:020}.json").write_text(json.dumps(content))

    def log(self, name):
        return self.path / "_lake" / "log" / name

    def _file(self, rows, topic, hour):
        table = pa.Table.from_batches([rows])
        table = table.filter(pa.compute.equal(table["topic"], topic))
        place = f"lake_topic={quote(topic, safe='')}/hour={hour}"
        name = f"files/{QUERY}/{self.number:010}/attempt/{place}/part-{len(self.files)}.parquet"
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(table, self.path / name, compression="zstd")
        size = (self.path / name).stat().st_size
        return {"path": name, "topic": topic, "hour": hour, "bytes": size, "rows": table.num_rows}
