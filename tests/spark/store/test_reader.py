"""`rocketmq-store`: store folders of rmqkit or Apache as rows, intact or damaged."""

import re
import shutil
from dataclasses import replace
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.functions import spark_partition_id
from pyspark.sql.types import StringType, StructField, StructType

from rmqkit.errors import ConfigError
from rmqkit.spark.columns import STORE_COLUMNS
from rmqkit.spark.data_sources import StoreDataSource
from rmqkit.spark.options import parse
from rmqkit.spark.store import files
from rmqkit.spark.store.files import StoreInUse, log_files, log_folders
from rmqkit.spark.store.reader import read_file
from rmqkit.store import ENGINES
from rmqkit.testing.store_world import StoreWorld, put, store_config
from tests.spark.logs import BORN_MS, bodies_of, log_file
from tests.store.apache_store import files_of, messages_of

ALL = tuple(STORE_COLUMNS)


def rows_of(path: Path, columns: tuple[str, ...] = ALL, **chosen) -> list[dict]:
    options = replace(parse({}, "store"), columns=columns, **chosen)
    tables = [
        pa.Table.from_batches([batch]) for file in log_files(log_folders(str(path))) for batch in read_file(file, options)
    ]
    return pa.concat_tables(tables).to_pylist() if tables else []


def apache_store(folder: Path, name: str) -> Path:
    for inner, data in files_of(name).items():
        path = folder / inner
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


@pytest.mark.parametrize("name", ["clean", "killed"])
def test_every_record_of_apaches_store_is_a_row(tmp_path, name):
    rows = rows_of(apache_store(tmp_path, name))
    wanted = messages_of(name)
    assert len(rows) == len(wanted) >= 17
    for row, message in zip(rows, wanted, strict=True):
        assert row["damage"] is None
        assert row["body_crc_ok"] is True
        assert (row["physical_offset"], row["size"]) == (message["offset"], message["size"])
        assert (row["topic"], row["queue"], row["offset"]) == (
            message["topic"],
            message["queue_id"],
            message["queue_offset"],
        )
        assert (row["flag"], row["sys_flag"]) == (message["flag"], message["sys_flag"])
        assert row["prepared_offset"] == message["prepared_offset"]
        assert row["store_time"].timestamp() * 1000 == pytest.approx(message["store_ms"])
        assert len(row["body"]) == message["body_size"]
        assert row["body"].decode().startswith(message["body"])
        assert dict(row["properties"]) == message["properties"]
        assert Path(row["file"]).name == f"{message['offset'] - message['offset'] % 4096:020d}"


@pytest.mark.parametrize("prop_crc", [False, True])
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_every_record_of_our_store_is_a_row(tmp_path, how, prop_crc):
    """The engine writes several files; all but the last end with a blank record."""
    world = StoreWorld(ENGINES["mapped"], store_config(commit_log={"enabled_append_prop_crc": prop_crc}))
    engine = world.start()
    bodies = [b"message %d " % number + b"x" * (number * 37 % 900) for number in range(60)]
    for number, body in enumerate(bodies):
        engine.append(put("T", number % 3, body, properties=b"KEYS\x01k%d\x02" % number))
        world.turn()
    getattr(world, how)()
    for name, file in world.folder.files.items():
        path = tmp_path / name.removeprefix("/store/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.read(0, file.size).ljust(file.size, b"\0"))
    rows = rows_of(tmp_path)
    assert [row["damage"] for row in rows] == [None] * 60
    assert [row["body"] for row in rows] == bodies
    assert [(row["queue"], row["offset"], row["keys"]) for row in rows] == [
        (number % 3, number // 3, f"k{number}") for number in range(60)
    ]
    assert len({row["file"] for row in rows}) > 3


def our_store(folder: Path, files: int = 3, size: int = 16_384) -> list[int]:
    """Write a log of `files` files, the last not full; return each record's physical offset."""
    (folder / "commitlog").mkdir(parents=True)
    random, starts = Random(7), []
    for number in range(files):
        topic = ("Orders", "Payments")[number % 2]
        data, places = log_file(
            number * size, size, [b"first", *bodies_of(random, 39, 200)], blank=number < files - 1, topic=topic,
            flag=number, prepared_offset=number * 1000,
        )  # fmt: skip
        (folder / "commitlog" / f"{number * size:020d}").write_bytes(data)
        starts += [number * size + place.at for place in places]
    return starts


def test_rows_come_in_the_order_of_the_log(tmp_path):
    starts = our_store(tmp_path)
    rows = rows_of(tmp_path)
    assert [row["physical_offset"] for row in rows] == starts
    assert {row["flag"]: row["prepared_offset"] for row in rows} == {0: 0, 1: 1000, 2: 2000}
    assert [row["offset"] for row in rows] == [*range(40)] * 3


def test_damage_is_rows_of_its_own(tmp_path):
    starts = our_store(tmp_path)
    path = tmp_path / "commitlog" / f"{16_384:020d}"
    data = bytearray(path.read_bytes())
    first, second = starts[40] - 16_384, starts[45] - 16_384
    data[first + 88 : first + 92] = b"\0\0\0\1"  # the body's CRC
    data[second + 4 : second + 8] = b"xxxx"  # its magic
    path.write_bytes(data)
    (tmp_path / "commitlog" / f"{32_768:020d}").unlink()
    shutil.copy(path, tmp_path / "commitlog" / f"{49_152:020d}.bak")
    rows = rows_of(tmp_path)
    broken = [row for row in rows if row["damage"] is not None]
    assert [(row["physical_offset"], row["size"], row["damage"]) for row in broken] == [
        (starts[40], starts[41] - starts[40], "its body does not have the CRC it was stored with"),
        (starts[45], starts[46] - starts[45], "magic 0x78787878 is not a record's"),
        (None, 16_384, "does not belong in a folder of commit-log files"),
    ]
    wrong, unreadable, stranger = broken
    assert unreadable["topic"] is unreadable["body"] is unreadable["body_crc_ok"] is stranger["offset"] is None
    assert (wrong["topic"], wrong["offset"], wrong["body_crc_ok"]) == ("Payments", 0, False)
    assert [row["physical_offset"] for row in rows[:80]] == starts[:80]


def test_a_pattern_means_users_topics(tmp_path):
    """As for brokers, system topics are read only if named exactly."""
    at = 0
    for topic in ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "%RETRY%g", "Payments"):
        data, _ = log_file(at, 4096, [b"x"], blank=True, topic=topic, queue_id=0)
        (tmp_path / f"{at:020d}").write_bytes(data)
        at += 4096

    def topics(**settings):
        return [row["topic"] for row in rows_of(tmp_path, ("topic",), **settings)]

    assert topics(subscribe_pattern=".*") == ["Payments"]
    assert topics(subscribe_pattern="%RETRY%.*") == ["%RETRY%g"]
    assert topics(subscribe=("SCHEDULE_TOPIC_XXXX",)) == ["SCHEDULE_TOPIC_XXXX"]
    assert len(topics()) == 4


def test_filters_choose_messages_and_never_hide_damage(tmp_path):
    starts = our_store(tmp_path)
    path = tmp_path / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[starts[3] + 4] = 0
    path.write_bytes(data)

    def told(**settings) -> list[tuple]:
        return [
            (row["topic"], row["offset"], row["damage"] is None)
            for row in rows_of(tmp_path, ("topic", "offset", "damage"), **settings)
        ]

    damage = (None, None, False)
    payments = [("Payments", offset, True) for offset in range(40)]
    assert told(subscribe=("Payments",)) == [damage, *payments]
    assert told(subscribe_pattern="Pay.*") == [damage, *payments]
    assert told(subscribe=("Pay",)) == told(subscribe_pattern="Pay") == [damage]
    begin, end = BORN_MS + 2000, BORN_MS + 5000
    within = told(starting_timestamp=begin, ending_timestamp=end)
    assert within == [
        ("Orders", 2, True), damage, ("Orders", 4, True),
        *(("Payments", offset, True) for offset in (2, 3, 4)),
        *(("Orders", offset, True) for offset in (2, 3, 4)),
    ]  # fmt: skip
    assert told(subscribe=("Orders",), starting_timestamp=BORN_MS + 39_000) == [damage, *[("Orders", 39, True)] * 2]


def test_only_the_columns_that_are_asked_for(tmp_path):
    our_store(tmp_path, files=1)
    for columns in (("offset",), ("damage", "body"), ("physical_offset", "size", "topic")):
        assert {tuple(row) for row in rows_of(tmp_path, columns)} == {columns}


def test_a_broker_that_writes_leaves_a_tail_that_is_no_damage(tmp_path):
    starts = our_store(tmp_path)
    path = tmp_path / "commitlog" / f"{32_768:020d}"
    data = path.read_bytes()
    torn = starts[-1] - 32_768 + 30
    path.write_bytes(data[:torn].ljust(16_384, b"\0"))
    rows = rows_of(tmp_path)
    assert rows[-1]["damage"].endswith("no intact record up to the end of the written part")
    assert rows_of(tmp_path, allow_running=True) == rows[:-1]


def test_a_compressed_body_is_inflated_and_a_wrong_one_given_as_it_is(tmp_path):
    import zlib

    (tmp_path / "commitlog").mkdir()
    bodies = [zlib.compress(b"hello " * 50), b"not compressed at all"]
    data, _ = log_file(0, 4096, bodies, blank=True, sys_flag=1)
    (tmp_path / "commitlog" / f"{0:020d}").write_bytes(data)
    assert [row["body"] for row in rows_of(tmp_path)] == [b"hello " * 50, bodies[1]]


@pytest.mark.parametrize("seed", range(8))
def test_whatever_the_damage_every_byte_is_accounted_for(tmp_path, seed):
    starts = our_store(tmp_path)
    random = Random(seed)
    for path in (tmp_path / "commitlog").iterdir():
        data = bytearray(path.read_bytes())
        for _ in range(6):
            at = random.randrange(5000)
            data[at : at + 40] = random.choice((bytes(40), random.randbytes(40)))
        path.write_bytes(data)
    rows = rows_of(tmp_path)
    sizes = {}
    for row in rows:
        assert row["physical_offset"] not in sizes
        sizes[row["physical_offset"]] = row["size"]
    sound = {row["physical_offset"] for row in rows if row["damage"] is None}
    assert sound <= set(starts)
    at = 0
    for offset in sorted(sizes):
        if offset != at:  # a blank record ends the file
            assert offset == at + 16_384 - at % 16_384
        at = offset + sizes[offset]
    assert len(sound) > 60


# --- with Spark


def test_spark_reads_a_store(tmp_path, spark):
    starts = our_store(tmp_path)
    path = tmp_path / "commitlog" / f"{16_384:020d}"
    data = bytearray(path.read_bytes())
    data[starts[50] - 16_384 + 4] = 0
    path.write_bytes(data)
    frame = spark.read.format("rocketmq-store").load(str(tmp_path))
    assert frame.columns == list(STORE_COLUMNS)
    rows = frame.select(spark_partition_id().alias("part"), "*").collect()
    assert [row.physical_offset for row in rows] == starts
    assert {row.part for row in rows} == {0, 1, 2}
    assert [(row.physical_offset, row.topic) for row in rows if row.damage is not None] == [(starts[50], None)]
    spark.sql(
        f"create temporary view damaged_store using `rocketmq-store` options (path '{tmp_path}', subscribe 'Payments', "
        f"startingTimestamp '{BORN_MS + 12_000}', columns 'topic,offset,damage,properties', files '*16384')"
    )
    try:
        found = spark.sql("select topic, offset, properties['KEYS'] from damaged_store order by offset").collect()
    finally:
        spark.catalog.dropTempView("damaged_store")
    assert [tuple(row) for row in found] == [
        (None, None, None),
        *(("Payments", offset, f"k{offset}") for offset in range(12, 40)),
    ]


def schema_of(*names: str) -> StructType:
    """Return a schema of these names; the reader ignores types. Spark's DDL parser needs a JVM."""
    return StructType([StructField(name, StringType()) for name in names])


def reader_of(**options: str):
    source = StoreDataSource(options)
    return source.reader(schema_of(*re.findall(r"`(\w+)`", source.schema())))


def test_an_empty_store_has_no_rows(tmp_path):
    (tmp_path / "commitlog").mkdir()
    reader = reader_of(path=str(tmp_path))
    assert reader.partitions() == []
    assert list(reader.read(InputPartition(None))) == []


def test_a_running_brokers_store_is_read_only_when_asked_for(tmp_path, monkeypatch):
    our_store(tmp_path)
    monkeypatch.setattr(files, "_is_locked", lambda path: path == tmp_path / "lock")
    with pytest.raises(StoreInUse, match=f"a broker runs on {tmp_path}"):
        reader_of(path=str(tmp_path)).partitions()
    reader = reader_of(path=str(tmp_path), allowRunning="true")
    assert sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part)) == 120


def test_unknown_columns_are_named(tmp_path):
    def problem(**options: str) -> str:
        with pytest.raises(ConfigError) as raised:
            reader_of(**options).partitions()
        return str(raised.value)

    assert problem() == 'rocketmq-store needs a path: .load("/data/store")'
    assert "is not a folder" in problem(path=str(tmp_path / "x"))
    assert "namesrv" in problem(path=str(tmp_path), namesrv="127.0.0.1:9876")
    assert "did you mean files?" in problem(path=str(tmp_path), file="*")
    assert "physical_offset" in problem(path=str(tmp_path), columns="physicaloffset")
    with pytest.raises(ConfigError, match="'read_from' of the schema is not a column of rocketmq-store"):
        StoreDataSource({"path": str(tmp_path)}).reader(schema_of("read_from"))
