"""`rmqkit doctor`: checks this machine and its clusters for problems.

A check yields `DoctorFinding`s, each with a state and what to do:

- `ok`: no problem;
- `note`: something optional is missing;
- `warn`: it works, with a drawback;
- `bad`: it does not work. Any `bad` makes the exit code 1.
"""

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from rmqkit.cli import output
from rmqkit.cli.cluster_lookup import Json
from rmqkit.cli.errors import Failed

app = typer.Typer(add_completion=False, rich_markup_mode=None)

PYTHON_MIN = (3, 11)
DESCRIPTORS_MIN = 4096
DISK_FREE_MIN = 2 << 30
DISK_USED_MAX = 0.75
MEMORY_MIN = 512 << 20
YEAR_MIN = 2025
FUTURE_S = 5.0
TIME_ERROR = 5
SPARK_S = 300.0


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """One line of the report; `state` is ok, note, warn or bad."""

    check: str
    state: str
    text: str
    advice: str = ""


def python_version() -> Iterator[DoctorFinding]:
    text = f"Python {sys.version.split()[0]} on {sys.platform}"
    if sys.version_info < PYTHON_MIN:
        yield DoctorFinding("python", "bad", text, "use Python 3.11 or newer")
    elif not __debug__:
        yield DoctorFinding(
            "python", "bad", f"{text}, with -O", "start without -O and PYTHONOPTIMIZE: nodes need their assertions"
        )
    elif sys.platform == "win32":
        yield DoctorFinding("python", "warn", text, "clusters run on Linux and macOS; here rmqkit is a client only")
    else:
        yield DoctorFinding("python", "ok", text)


def home_folder() -> Iterator[DoctorFinding]:
    from rmqkit.cluster.layout.home import home_folder as home

    folder = home()
    there = next(each for each in (folder, *folder.parents) if each.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        yield DoctorFinding("home", "bad", f"{folder} cannot be written", "set RMQKIT_HOME to a folder that you can write")
        return
    yield DoctorFinding("home", "ok", str(folder))
    usage = shutil.disk_usage(there)
    text = f"{usage.free / (1 << 30):.1f} GiB free on the disk of {folder}"
    if usage.free < DISK_FREE_MIN:
        yield DoctorFinding("disk", "bad", text, "make room, or set RMQKIT_HOME to another disk")
    elif usage.used / usage.total > DISK_USED_MAX:
        advice = "above diskMaxUsedSpaceRatio (75 % of the disk) brokers delete expired files at any hour"
        yield DoctorFinding("disk", "warn", f"{text}, {usage.used / usage.total:.0%} used", advice)
    else:
        yield DoctorFinding("disk", "ok", text)


def limits() -> Iterator[DoctorFinding]:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"open files: {_limit(soft)}, can be raised to {_limit(hard)}"
    if hard != resource.RLIM_INFINITY and hard < DESCRIPTORS_MIN:
        yield DoctorFinding(
            "limits", "warn", text, f"raise it (`ulimit -n {DESCRIPTORS_MIN}`): each client and each file uses one"
        )
    else:
        yield DoctorFinding("limits", "ok", text)
    largest, _hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if largest != resource.RLIM_INFINITY:
        yield DoctorFinding("limits", "bad", f"files cannot grow beyond {largest} bytes", "run `ulimit -f unlimited`")


def _limit(value: int) -> str:
    import resource

    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


def memory() -> Iterator[DoctorFinding]:
    import psutil

    free = psutil.virtual_memory().available
    text = f"{free / (1 << 30):.1f} GiB of memory available"
    if free < MEMORY_MIN:
        yield DoctorFinding("memory", "warn", text, "a small cluster needs about 100 MiB; the rest caches its files")
    else:
        yield DoctorFinding("memory", "ok", text)


def clock() -> Iterator[DoctorFinding]:
    now_s = time.time()
    if time.gmtime(now_s).tm_year < YEAR_MIN:
        yield DoctorFinding(
            "clock", "bad", f"the clock says {time.ctime(now_s)}", "set the clock: messages are stored with its time"
        )
        return
    from rmqkit.cluster.layout.home import LOG, home_folder

    newest_s = max((_modified_s(path) for path in home_folder().glob(f"*/nodes/*/{LOG}")), default=0.0)
    if newest_s > now_s + FUTURE_S:
        text = f"a node's log was written {newest_s - now_s:.0f} s in the future: the clock was set back"
        yield DoctorFinding(
            "clock", "warn", text, "searches by time assume increasing timestamps: they may find the wrong message"
        )
    elif _is_unsynchronised():
        yield DoctorFinding("clock", "warn", "the clock is not synchronised", "run chrony or systemd-timesyncd")
    else:
        yield DoctorFinding("clock", "ok", time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(now_s)))


def _modified_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _is_unsynchronised() -> bool:
    """Return whether the kernel reports an unsynchronised clock; False if it cannot be asked."""
    if not sys.platform.startswith("linux"):
        return False
    import ctypes

    try:
        return bool(ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512)) == TIME_ERROR)
    except (OSError, AttributeError):
        return False


def ports() -> Iterator[DoctorFinding]:
    from rmqkit.cluster import Cluster, Description
    from rmqkit.cluster.layout.ports import is_free, owner_of

    cluster = Cluster()
    own = {port for target in cluster.targets() for port in target.plan.ports(target.port)} if cluster.is_running else set()
    taken = 0
    for plan in Description().nodes():
        for port in plan.ports(plan.port):
            if port not in own and not is_free("127.0.0.1", port):
                taken += 1
                owner = owner_of(port) or "an unknown process"
                advice = "stop it, or start clusters with --any-port or --base-port"
                yield DoctorFinding("ports", "warn", f"port {port} of {plan.node} is in use by {owner}", advice)
    if not taken:
        yield DoctorFinding("ports", "ok", "the ports of the default cluster are free, or in use by it")


def leftovers() -> Iterator[DoctorFinding]:
    """Find nodes that should run but do not, stray node processes, and folders of failed starts."""
    from rmqkit.cluster import ClusterError, clusters, processes
    from rmqkit.cluster.layout.home import NODES
    from rmqkit.cluster.layout.home import home_folder as home

    known = set()
    found = 0
    for cluster in clusters():
        word = "" if cluster.name == "default" else f" {cluster.name}"
        try:
            running = cluster.running()
        except ClusterError as error:
            found += 1
            yield DoctorFinding("leftovers", "bad", str(error), "correct the file, or remove the folder")
            continue
        known |= {process.pid for process in running.values()}
        records = processes.known(cluster.folder).nodes
        died = [node for node, record in records.items() if record.asked == "up" and node not in running]
        if died:
            found += 1
            text = f"cluster {cluster.name}: {', '.join(died)} should run but does not"
            yield DoctorFinding("leftovers", "warn", text, f"`rmqkit cluster up{word}`, or `rmqkit cluster down{word}`")
    for pid, folder in processes.strays(home()):
        if pid not in known:
            found += 1
            text = f"process {pid} runs {folder} but belongs to no cluster"
            yield DoctorFinding("leftovers", "warn", text, f"`kill {pid}`")
    for folder in sorted(home().glob(f"*/{NODES}")):
        if not (folder.parent / "cluster.toml").exists():
            found += 1
            name = folder.parent.name
            yield DoctorFinding(
                "leftovers", "warn", f"{folder.parent} is left from a failed start", f"`rmqkit cluster down {name} --purge`"
            )
    if not found:
        yield DoctorFinding("leftovers", "ok", "none")


def name_servers() -> Iterator[DoctorFinding]:
    """Check the name servers of NAMESRV_ADDR if it is set, since commands use them."""
    text = os.environ.get("NAMESRV_ADDR")
    if not text:
        return
    from rmqkit.cli.cluster_lookup import find_namesrv
    from rmqkit.cluster.health.caller import Caller, NoAnswer
    from rmqkit.runtime.connection import Address
    from rmqkit.wire.codes import RequestCode

    for address in map(Address.parse, find_namesrv(None).split(";")):
        try:
            with Caller(address.host, address.port, time.monotonic() + 1.0) as caller:
                caller.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
            yield DoctorFinding("NAMESRV_ADDR", "ok", f"{address} answers")
        except NoAnswer as error:
            yield DoctorFinding("NAMESRV_ADDR", "bad", f"{address}: {error}", "start it, or `unset NAMESRV_ADDR`")


def broker_groups() -> Iterator[DoctorFinding]:
    """Find contradicting settings in the groups of running clusters."""
    from rmqkit.cli.nodes.doctor_groups import findings

    for state, text, advice in findings():
        yield DoctorFinding("groups", state, text, advice)


def spark() -> Iterator[DoctorFinding]:
    """Run a query in Spark if PySpark is installed."""
    import json
    import subprocess

    from rmqkit.spark.sessions import SparkMissing, check_installed

    try:
        check_installed()
    except SparkMissing as error:
        yield DoctorFinding("spark", "note", f"no data pipeline: {error}")
        return
    try:
        words = [sys.executable, "-m", "rmqkit.spark.probe"]
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SPARK_S)
        answer = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        yield DoctorFinding(
            "spark", "bad", f"a query did not end within {SPARK_S:.0f} s", "run `python -m rmqkit.spark.probe` for details"
        )
        return
    except (IndexError, ValueError):
        last = (done.stderr.splitlines() or ["nothing"])[-1]
        yield DoctorFinding("spark", "bad", f"a query failed: {last}", "run `python -m rmqkit.spark.probe` for details")
        return
    if "error" in answer:
        yield DoctorFinding("spark", "bad", answer["error"], "")
        return
    text = f"PySpark {answer['spark']} on Java {answer['java']} ({answer['from']}) ran a query"
    if not answer["is_found"]:
        advice = f"install rmqkit there, or set PYSPARK_PYTHON to {sys.executable}"
        yield DoctorFinding(
            "spark", "bad", f'{text}, but its workers ({answer["python"]}) do not find format("rocketmq")', advice
        )
    else:
        yield DoctorFinding("spark", "ok", text)


CHECKS: tuple[Callable[[], Iterator[DoctorFinding]], ...] = (
    python_version,
    home_folder,
    limits,
    memory,
    clock,
    ports,
    leftovers,
    name_servers,
    broker_groups,
)  # fmt: skip
NOT_ON_WINDOWS = (limits, ports, leftovers)


@app.command()
def doctor(
    run_spark: Annotated[bool, typer.Option("--spark/--no-spark", help="Run a Spark query, which takes seconds.")] = True,
    json: Json = False,
) -> None:
    """Check this machine for problems with clusters and the data pipeline, and say what to do."""
    checks = [check for check in CHECKS if sys.platform != "win32" or check not in NOT_ON_WINDOWS]
    if run_spark:
        checks.append(spark)
    findings = [finding for check in checks for finding in check()]
    is_well = all(finding.state != "bad" for finding in findings)
    if json:
        output.document({"ok": is_well, "checks": [asdict(finding) for finding in findings]})
    else:
        rows = [(each.check, each.state, each.text + (f"\n  → {each.advice}" if each.advice else "")) for each in findings]
        print_findings(rows)
    if not is_well:
        raise Failed("")


def print_findings(rows: list[tuple[str, str, str]]) -> None:
    if output.on_terminal():
        output.table(("check", "", "finding"), rows)
        return
    for check, state, text in rows:
        print(f"{check:13} {state:5} {text.replace(chr(10), ' ')}")
