"""Topic → Delta table → DuckDB → replay: find the payments that failed, and send them again.

- `ingest` and `replay` are jobs of Spark and need Java.
- The table between them does not. `failures` queries it with DuckDB, `tidy` merges its files. These
  two work on any machine that sees the table, with `pip install rmqkit deltalake pyarrow duckdb`.

It uses the cluster that NAMESRV_ADDR names (default 127.0.0.1:9876) and needs rmqkit[spark] and
duckdb.
"""

import json
import os
import tempfile
from datetime import UTC, datetime

import duckdb
from deltalake import DeltaTable

from rmqkit import Admin, Message, Producer
from rmqkit.spark.pipelines import lake
from rmqkit.spark.pipelines.compact import compact

TOPIC, AGAIN = "example-lake-payments", "example-lake-payments-again"
BANKS = ["north", "south", "west"]

#: For each bank: its payments, those that failed, and when the first and the last one failed.
FAILURES = """
    with payments as (
        select cast(decode(body) as json) ->> 'bank' as bank, tags = 'failed' as has_failed, store_time
        from messages
        where topic = $topic
    )
    select
        bank,
        count(*) as payments,
        count(*) filter (has_failed) as failed,
        epoch_ms(min(store_time) filter (has_failed)) as first_ms,
        epoch_ms(max(store_time) filter (has_failed)) as last_ms
    from payments
    group by bank
    order by bank
"""


def failures(folder):
    """Return (bank, payments, failed, first_ms, last_ms) for each bank, from the table."""
    with duckdb.connect() as database:
        database.register("messages", DeltaTable(folder).to_pyarrow_dataset())
        return database.execute(FAILURES, {"topic": TOPIC}).fetchall()


def tidy(folder):
    """Merge the small files of the table, those of the current hour too."""
    done = compact(folder, topics=[TOPIC], before_hour=lake.wall_ms() + lake.HOUR_MS)
    found = lake.describe(folder)
    print(f"{found.rows} rows of {', '.join(found.topics)}: {done.files_before} files merged into {done.files_after}")
    return found


def pay(producer, first, last, *, failing=()):
    for number in range(first, last):
        bank = BANKS[number % len(BANKS)]
        payment = json.dumps({"number": number, "bank": bank})
        producer.send(Message(TOPIC, payment, tags="failed" if bank in failing else "paid"))


def main(spark, folder) -> None:
    from rmqkit.spark.pipelines.ingest import ingest
    from rmqkit.spark.pipelines.replay import replay

    with Admin() as admin:
        for topic in (TOPIC, AGAIN):
            admin.create_topic(topic, queue_nums=4)
    with Producer(group="example-payers") as producer:
        pay(producer, 0, 30)
        ingest(spark, TOPIC, folder)
        pay(producer, 30, 60, failing=["south"])
        ingest(spark, TOPIC, folder)

    rows = failures(folder)
    for bank, payments, failed, first_ms, _ in rows:
        since = f", the first at {datetime.fromtimestamp(first_ms / 1000, UTC):%H:%M:%S}" if failed else ""
        print(f"{bank}: {failed} of {payments} payments failed{since}")
    tidy(folder)
    assert failures(folder) == rows

    bounds = [(first_ms, last_ms) for _, _, failed, first_ms, last_ms in rows if failed]
    since, until = min(first for first, _ in bounds), max(last for _, last in bounds) + 1
    done = replay(spark, folder, AGAIN, since=since, until=until, topics=[TOPIC])
    print(f"{done.rows} messages of that time sent to {AGAIN}")
    assert done.rows >= sum(failed for _, _, failed, *_ in rows)


if __name__ == "__main__":
    from rmqkit.spark import session

    with tempfile.TemporaryDirectory() as temporary:
        main(session("example"), os.path.join(temporary, "lake"))
