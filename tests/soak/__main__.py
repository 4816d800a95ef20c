"""Runs the soak test, `make soak`: 2 million messages of 1 KiB in every case.

It takes about 25 minutes on 2 processors and prints the findings as JSON on stdout. Use
`ARGS="--messages 100000 --only follow"` for less. `--write` stores the findings in
`docs/performance/soak.json`. The exit code is 1 if an offset is missing, duplicated, or not one of
the topic's.
"""

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from rmqkit.spark import session
from rmqkit.testing import clusters
from tests.soak import cases
from tests.soak.ingesting import Command, by_command

PAGE = Path(__file__).parents[2] / "docs" / "performance" / "soak.json"
#: settings of both JVMs: the one that checks, and the one of the ingest under test
CONF = {"spark.driver.memory": "2g"}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make soak")
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--size", type=int, default=1024, help="bytes of a message body")
    parser.add_argument("--batches", type=int, default=10, help="micro-batches of an AvailableNow run")
    parser.add_argument("--only", action="append", choices=[*cases.CASES], help="run only this case; may be repeated")
    parser.add_argument("--write", action="store_true", help=f"store the findings in {PAGE.name}")
    asked = parser.parse_args(arguments)
    # An ingest with --follow is stopped by SIGINT. A background job would inherit it as ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    found = soak(asked.messages, asked.size, asked.batches, asked.only or [*cases.CASES])
    print(json.dumps(found, indent=1))
    if asked.write:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if all(case["right"] for case in found["cases"].values()) else 1


def soak(messages: int, size: int, batches: int, names: list[str]) -> dict:
    with tempfile.TemporaryDirectory(prefix="rmqkit-soak-") as home:
        running = clusters.start(Path(home) / "cluster", timeout_s=60, groups=1, replicas=2)
        try:
            spark = session("soak", conf=CONF)
            soaked = cases.Soak(
                cluster=running.cluster,
                spark=spark,
                folder=Path(home),
                ingest=by_command(running.namesrv, CONF),
                command=lambda *places, **asked: Command(*places, **asked, conf=CONF),
                count=messages,
                size=size,
                batches=batches,
            )
            return _run(soaked, names)
        finally:
            running.down(keep=False)


def _run(soaked: cases.Soak, names: list[str]) -> dict:
    begun_s = time.monotonic()
    soaked.prepare()
    _say(f"{soaked.count} messages of {soaked.size} bytes sent in {time.monotonic() - begun_s:.0f} s")
    found = {}
    for name in names:
        begun_s = time.monotonic()
        checked, facts = cases.CASES[name](soaked)
        seconds = round(time.monotonic() - begun_s, 1)
        found[name] = {"right": checked.is_right, **checked._asdict(), **facts, "seconds": seconds}
        _say(f"{name}: {json.dumps(found[name])}")
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "messages": soaked.count,
        "size": soaked.size,
        "processors": os.cpu_count(),
        "system": platform.platform(terse=True),
        "cases": found,
    }


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
