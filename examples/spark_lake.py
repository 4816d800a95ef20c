"""Topic → lake → aggregate: ingest orders into a Delta table and sum them up with Spark.

- `ingest` writes each message into the lake once, however often it is called and even after a
  crash. The second call here reads only the messages sent after the first.
- `lake.read` sees only committed batches, and opens only the files of the requested hours.
- `compact` merges many small files into a few. Readers see the same rows all the time.

It uses the cluster that NAMESRV_ADDR names (default 127.0.0.1:9876) and needs rmqkit[spark].
"""

import json
import os
import tempfile

from pyspark.sql import functions as F

from rmqkit import Admin, Message, Producer
from rmqkit.spark import session
from rmqkit.spark.pipelines import lake
from rmqkit.spark.pipelines.compact import compact
from rmqkit.spark.pipelines.ingest import ingest

TOPIC = "example-spark-orders"
CUSTOMERS = ["ann", "bob", "cleo"]


def send_orders(producer, first, last):
    for number in range(first, last):
        order = {"number": number, "customer": CUSTOMERS[number % 3], "cents": 100 * number}
        producer.send(Message(TOPIC, json.dumps(order), keys=f"order-{number}"))


def revenue(spark, folder):
    """Return customer -> (number of orders, cents), computed from the message bodies."""
    orders = lake.read(spark, folder).select(
        F.from_json(F.col("body").cast("string"), "number int, customer string, cents bigint").alias("order")
    )
    table = orders.groupBy("order.customer").agg(F.count("*").alias("orders"), F.sum("order.cents").alias("cents"))
    return {row["customer"]: (row["orders"], row["cents"]) for row in table.collect()}


def main(spark, folder) -> None:
    before = lake.describe(folder).rows if lake.is_lake(folder) else 0
    with Admin() as admin:
        admin.create_topic(TOPIC, queue_nums=4)
    with Producer(group="example-shop") as producer:
        send_orders(producer, 0, 60)
        first = ingest(spark, TOPIC, folder)
        send_orders(producer, 60, 90)
        second = ingest(spark, TOPIC, folder)
    print(f"first call: {first.rows} messages, second call: {second.rows}")
    assert second.rows == 30

    by_customer = revenue(spark, folder)
    for customer, (orders, cents) in sorted(by_customer.items()):
        print(f"{customer}: {orders} orders, {cents / 100:.2f}")
    assert sum(orders for orders, _ in by_customer.values()) == before + first.rows + second.rows

    # By default only closed hours are compacted. `before_hour` includes the current one here.
    done = compact(folder, before_hour=lake.wall_ms() + lake.HOUR_MS)
    print(f"{done.files_before} files compacted into {done.files_after}")
    assert revenue(spark, folder) == by_customer


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(session("example"), os.path.join(temporary, "lake"))
