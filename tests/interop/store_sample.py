"""Records a small store folder of Apache's broker as golden files for tests/store.

The configuration makes the files small: commit log files of 4 KiB, consume queue files of 100
entries, an index of 100 slots. So the log rolls over several files, and nearly all of it can be
kept whole.

Two folders result: `clean`, as SIGTERM left it, and `killed`, the same store started again, given
more messages and ended by SIGKILL. `<name>.messages.jsonl` beside each has every record of its
commit log as Apache's own decoder prints it.
"""

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from . import apache

SMALL = {
    "mappedFileSizeCommitLog": "4096",
    "mappedFileSizeConsumeQueue": "2000",
    "maxHashSlotNum": "100",
    "maxIndexNum": "400",
    "warmMapedFileEnable": "false",
}
# size in bytes above which a file is kept without its trailing zeros
PLAIN_SIZE_MAX = 16 * 1024
_LONG_GROUP = "LongGroup_" + "x" * 130
_UNIQUE_ID = "7F00000100010000000000000000{:04X}"


def record_store(folder: Path, run_driver: Callable[..., None]) -> None:
    """Write `clean`, `killed`, their message lists and `index.toml` to `folder`, emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    entries: list[str] = []
    with tempfile.TemporaryDirectory(prefix="apache-store-") as home:
        # Bind to all addresses, so that one message can arrive over IPv6. Advertised is 127.0.0.1.
        servers = apache.ApacheCluster(home=Path(home), bind="::", broker_properties=SMALL)
        try:
            _write_long_group(servers.store)
            servers.start_nameserver()
            servers.start_broker()
            run_driver(servers.namesrv, "store_sample")
            _send_ipv6(servers)
            _send_to_long_topic(servers)
            servers.stop_broker(clean=True)
            entries += _keep(servers.store, folder, "clean")
            servers.start_broker()
            for number in range(3):
                _send(f"{apache.HOST}:{servers.broker_port}", "SampleTopic", f"before the kill {number}", 10 + number)
            time.sleep(2)  # let the broker dispatch and flush: the sample is to contain that state
            servers.stop_broker(clean=False)
            entries += _keep(servers.store, folder, "killed")
        finally:
            servers.stop()
    head = (
        "# A store folder of Apache RocketMQ 5.5.0's broker, as a clean stop and as a kill left it; written by\n"
        "# `python -m tests.interop.record store`. `size` is the file's size there, `kept` how many of its first bytes\n"
        "# stand here: the rest was zeros.\n\n"
    )
    (folder / "index.toml").write_text(head + "\n".join(entries))


def _send(address: str, topic: str, body: str, number: int) -> None:
    fields = {
        "producerGroup": "by-hand",
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "1",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "1700000000000",
        "flag": "7",
        "properties": f"UNIQ_KEY\x01{_UNIQUE_ID.format(number)}\x02KEYS\x01by-hand-{number}\x02TAGS\x01TagHand\x02",
        "reconsumeTimes": "0",
        "unitMode": "false",
        "maxReconsumeTimes": "0",
        "batch": "false",
    }
    answer = apache.ask(address, 10, fields, body.encode())
    if answer["code"] != 0:
        raise apache.ApacheError(f"not sent to {topic}: {answer}")


def _send_ipv6(servers: apache.ApacheCluster) -> None:
    _send(f"[::1]:{servers.broker_port}", "SampleTopic", "came by IPv6", 1)


def _write_long_group(store: Path) -> None:
    """Write a group with a longer name than requests may create.

    The name of its retry topic has more than 127 bytes.
    """
    config = store / "config"
    config.mkdir(parents=True)
    table = {_LONG_GROUP: {"groupName": _LONG_GROUP, "consumeEnable": True, "retryQueueNums": 1, "retryMaxTimes": 16}}
    version = {"counter": 1, "stateVersion": 0, "timestamp": 1}
    (config / "subscriptionGroup.json").write_text(json.dumps({"subscriptionGroupTable": table, "dataVersion": version}))


def _send_to_long_topic(servers: apache.ApacheCluster) -> None:
    """Send to a topic of more than 127 bytes, which is stored as record version 2.

    Only a retry topic can have such a name.
    """
    _send(f"{apache.HOST}:{servers.broker_port}", f"%RETRY%{_LONG_GROUP}", "in a topic of a long name", 2)


def _keep(store: Path, folder: Path, name: str) -> Iterator[str]:
    """Copy the used part of each file below `store` and yield its row for index.toml."""
    for path in sorted(path for path in store.rglob("*") if path.is_file()):
        inner = path.relative_to(store).as_posix()
        if inner.startswith("rocksdbstore/"):
            continue
        data = path.read_bytes()
        kept = data if len(data) <= PLAIN_SIZE_MAX else data.rstrip(b"\0")
        if len(kept) > 4 * PLAIN_SIZE_MAX:
            raise apache.ApacheError(f"{inner} is too large to keep: {len(kept)} used bytes")
        target = folder / name / inner
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(kept)
        yield f"[{json.dumps(name + '/' + inner)}]\nsize = {len(data)}\nkept = {len(kept)}\n"
    (folder / f"{name}.messages.jsonl").write_text(_dump(store))


def _dump(store: Path) -> str:
    with tempfile.TemporaryDirectory(prefix="dump-") as home:
        process = apache.start_java("rmqkit.interop.StoreDump", [str(store)], home=Path(home), stderr=None)
        said = process.stdout.read() if process.stdout else ""
        if process.wait():
            raise apache.ApacheError("Apache's decoder failed on the sample")
    return "".join(line + "\n" for line in said.splitlines() if line.startswith("{"))
