"""A transaction around a SQLite update, with a crash in the middle.

    half message ──► UPDATE accounts … COMMIT ──► commit of the half: the message is delivered

A program withdraws money and reports it to others. Its process is killed between the commit of its
database and the commit of its message. The broker asks the next process about the half message that
is left. That process looks into the database, and the message is delivered. A withdrawal that was
never committed is never reported.

    python examples/transaction.py                  with a cluster of its own, in a few seconds
    python examples/transaction.py HOST:PORT        against yours; the broker asks within 40 seconds
"""

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rmqkit import Admin, Message, MessageExt, PullConsumer, TransactionProducer, TransactionState

GROUP = "withdrawals"
#: the broker asks soon; the defaults are 6 and 30 seconds
SOON = ("transactionTimeOut=500", "transactionCheckInterval=500")


class Accounts:
    """The program's database. The table `withdrawals` says which transactions are committed."""

    def __init__(self, path: str) -> None:
        # The check callback runs in a thread of the producer.
        self.database = sqlite3.connect(path, check_same_thread=False)
        with self.database:
            self.database.execute("CREATE TABLE IF NOT EXISTS accounts (name TEXT PRIMARY KEY, amount INTEGER)")
            self.database.execute("CREATE TABLE IF NOT EXISTS withdrawals (id TEXT PRIMARY KEY)")
            self.database.execute("INSERT OR IGNORE INTO accounts VALUES ('ada', 100)")

    def withdraw(self, message: Message, amount: int) -> TransactionState:
        """The local transaction: both rows are written, or none."""
        with self.database:
            (left,) = self.database.execute("SELECT amount FROM accounts WHERE name = 'ada'").fetchone()
            if left < amount:
                return TransactionState.ROLLBACK
            self.database.execute("UPDATE accounts SET amount = amount - ? WHERE name = 'ada'", (amount,))
            self.database.execute("INSERT INTO withdrawals VALUES (?)", (message.keys,))
        return TransactionState.COMMIT

    def check(self, message: MessageExt) -> TransactionState:
        """What became of it? The database knows."""
        known = self.database.execute("SELECT 1 FROM withdrawals WHERE id = ?", (message.keys,)).fetchone()
        state = TransactionState.COMMIT if known else TransactionState.ROLLBACK
        print(f"{message.keys}: the broker asks, the database says {state}", flush=True)
        return state

    def amount(self) -> int:
        (amount,) = self.database.execute("SELECT amount FROM accounts WHERE name = 'ada'").fetchone()
        return int(amount)


def work(namesrv: str, path: str, topic: str) -> None:
    """The process that is killed in the middle of its third withdrawal."""
    accounts = Accounts(path)
    with TransactionProducer(GROUP, check=accounts.check, namesrv=namesrv) as producer:

        def withdraw(number: str, amount: int) -> None:
            message = Message(topic, json.dumps({"id": number, "amount": amount}), keys=number)
            result = producer.send_in_transaction(message, accounts.withdraw, amount)
            print(f"{number}: {result.state}", flush=True)

        withdraw("w-1", 30)
        withdraw("w-2", 500)  # more than there is

        def withdraw_and_die(message: Message, amount: int) -> TransactionState:
            accounts.withdraw(message, amount)
            print(f"{message.keys}: committed in the database; the process is killed", flush=True)
            os._exit(9)

        body = json.dumps({"id": "w-3", "amount": 20})
        producer.send_in_transaction(Message(topic, body, keys="w-3"), withdraw_and_die, 20)


def reported(namesrv: str, topic: str, count: int, timeout_s: float) -> list[str]:
    """Read `count` messages of the topic, and all that are there besides."""
    found: list[str] = []
    with PullConsumer(namesrv=namesrv, consume_from="first") as consumer:
        consumer.assign(consumer.queues(topic))
        until_s = time.monotonic() + timeout_s
        while len(found) < count and time.monotonic() < until_s:
            found += [message.keys or "" for message in consumer.poll(500)]
        found += [message.keys or "" for message in consumer.poll(500)]
    return sorted(found)


def main(namesrv: str, timeout_s: float) -> None:
    with tempfile.TemporaryDirectory(prefix="withdrawals-") as folder:
        path, topic = str(Path(folder) / "accounts.db"), f"withdrawals-{os.getpid()}"
        with Admin(namesrv) as admin:
            admin.create_topic(topic, queue_nums=1)
        died = subprocess.run([sys.executable, __file__, "--work", namesrv, path, topic], check=False)
        assert died.returncode == 9, died.returncode
        accounts = Accounts(path)
        assert accounts.amount() == 50, accounts.amount()
        # The next process of the group answers for the one that is gone.
        with TransactionProducer(GROUP, check=accounts.check, namesrv=namesrv, topics=[topic]):
            found = reported(namesrv, topic, 2, timeout_s)
        accounts.database.close()
        assert found == ["w-1", "w-3"], found
        print("\nreported: w-1 and w-3; w-2 was never committed, and never reported")


@contextlib.contextmanager
def own_cluster() -> Iterator[str]:
    """A cluster in a temporary folder whose broker asks soon; its name servers."""
    rmqkit = str(Path(sys.executable).with_name("rmqkit"))
    with tempfile.TemporaryDirectory(prefix="transaction-") as home:
        env = {**os.environ, "RMQKIT_HOME": home}
        settings = [word for setting in SOON for word in ("--set", setting)]
        up = [rmqkit, "cluster", "up", "transaction", "--any-port", *settings, "--json"]
        status = subprocess.run(up, env=env, check=True, stdout=subprocess.PIPE, text=True)
        try:
            yield json.loads(status.stdout)["namesrv"]
        finally:
            subprocess.run([rmqkit, "cluster", "down", "transaction", "--purge"], env=env, check=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(*sys.argv[2:5])
    elif len(sys.argv) > 1:
        main(sys.argv[1], timeout_s=60)
    else:
        with own_cluster() as address:
            main(address, timeout_s=30)
