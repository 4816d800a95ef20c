"""Starts a Spark session that works wherever rmqkit is installed.

`session()` finds a Java, makes the workers use this Python, and silences Spark's startup messages.
If this process already has a session, `session()` returns it. Every value that it sets is a
default, which `conf` overrides.

Values that suit only one machine (addresses, folders, the number of shuffle partitions) are set for
local masters only, so `spark://...` and `yarn` keep the settings of their cluster. Under
`spark-submit` the JVM already runs, and its master is kept.

The JVM writes to stderr before any logging is configured. Its stderr is therefore a pipe. A thread
forwards the lines, drops known noise, and keeps the last lines: they become the error if the JVM
does not start.
"""

import atexit
import contextlib
import functools
import os
import re
import shutil
import socket
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmqkit.errors import ConfigError, PeerUnreachable, RmqkitError
from rmqkit.runtime.connection import Address
from rmqkit.spark import package
from rmqkit.spark.forks import fork_server
from rmqkit.spark.java import JavaMissing, find_java, lean_home
from rmqkit.spark.sink.pace import serve_pace

if TYPE_CHECKING:
    from pyspark.conf import SparkConf
    from pyspark.sql import SparkSession

__all__ = ["JavaMissing", "SparkMissing", "session"]

MASTER = "local[*]"
#: Rows per record batch between Python and the JVM; equal to `topic_reader.BATCH_ROWS`.
BATCH_ROWS = 8192
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
#: For the JVM of a local master: its second compiler compiles methods only once they have run ten
#: times as often as by default. In a job of seconds it would compile thousands that soon rest.
LATE_COMPILER = (
    "-XX:+IgnoreUnrecognizedVMOptions -XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
#: If "true", the JVM of a local master starts sooner: from a lean home (`java`), and without the
#: check of the byte code of its jars. `rmqkit pipeline` sets it: all jars are Spark's.
LEAN_KEY = "spark.rmqkit.lean"
UNCHECKED = "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
#: Beginnings of the lines that a JVM writes at every start.
NOISE = (
    "WARNING: Using incubator modules:",
    "Picked up JAVA_TOOL_OPTIONS:",
    "Using Spark's default log4j profile:",
    "Setting default log level to",
    "To adjust logging level use",
)
#: How many of the JVM's last lines become the error if it does not start.
LINES_KEPT = 20
#: What Spark takes as a master. A plug-in of Spark may know further schemes.
MASTERS = re.compile(r"local(\[(\d+|\*)(\s*,\s*\d+)?\]|-cluster\[.*\])?|yarn|\w+://.+")
#: How long a standalone cluster's master may take to accept a connection, in seconds.
REACH_S = 5.0
#: Environment variable: if set, another program started the JVM (spark-submit, a notebook server).
GATEWAY = "PYSPARK_GATEWAY_PORT"


class SparkMissing(RmqkitError):
    """The extra `[spark]` is not installed, or the JVM did not start. The text is one line."""


def session(
    app: str = "rmqkit",
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    pushdown: bool = False,
) -> "SparkSession":
    """Return the Spark session of this process; start one if there is none.

    With a running session, `app` is ignored, and of `conf` only the `spark.sql.*` keys that Spark
    can change at run time take effect.

    Args:
        app: Name of the application in Spark's logs and web UI.
        master: Spark's master, such as `local[4]` or `spark://host:7077`. Default: `spark.master`
            in `conf`, or else `local[*]`; under spark-submit, the master that it set.
        conf: Spark settings by key. They override the values that rmqkit sets.
        pushdown: Let Spark pass the filters of batch queries to the data source. The source also
            needs its option `pushdown=true`.

    Returns:
        The session. It is shared by the whole process and ends with it, or with its `stop()`.

    Raises:
        SparkMissing: pyspark, pyarrow or deltalake is not installed, or Spark's JVM did not start.
        JavaMissing: No Java that Spark can run on was found.
        ConfigError: `master` and `spark.master` differ, the running session has another master, or
            a Spark Connect address or no master at all was given.
        PeerUnreachable: No master of a standalone cluster takes a connection.

    Example:
        Start a local session and read a topic:

            from rmqkit.spark import session

            spark = session("orders", master="local[4]", conf={"spark.driver.memory": "4g"})
            orders = spark.read.format("rocketmq").option("subscribe", "orders").load()
            print(orders.count())
    """
    check_installed()
    from pyspark.core.context import SparkContext
    from pyspark.sql import SparkSession

    given = {key: str(value) for key, value in (conf or {}).items()}
    if pushdown:
        given.setdefault(PUSHDOWN, "true")
    _check_master(master, given)
    if master:
        given["spark.master"] = master
    if SparkContext._active_spark_context is None:
        _start(app, _settings(given))
    there = SparkContext.getOrCreate().master
    wanted = given.get("spark.master") or there
    if wanted != there:
        raise ConfigError(f"this process has a Spark session on {there}: stop it to start one on {wanted}")
    of_sql: dict[str, Any] = {key: value for key, value in given.items() if key.startswith("spark.sql.")}
    running = SparkSession.builder.config(map=of_sql).getOrCreate()
    # A driver may be unable to listen at its address. Only tasks with a rate need it to.
    with contextlib.suppress(OSError):
        serve_pace(running)
    return running


def check_installed() -> None:
    """Raise SparkMissing unless the packages of the extra `spark` can be imported."""
    missing = [name for name in ("pyspark", "pyarrow", "deltalake") if find_spec(name) is None]
    if missing:
        are = "is" if len(missing) == 1 else "are"
        raise SparkMissing(f"{' and '.join(missing)} {are} not installed: pip install 'rmqkit[spark]'")


def _check_master(master: str | None, given: Mapping[str, str]) -> None:
    asked = given.get("spark.master") or master or ""
    if master and master != asked:
        raise ConfigError(f"two different masters: master={master} and spark.master={asked}: set only one")
    if asked.startswith("sc://") or "spark.remote" in given:
        raise ConfigError(f"{asked or 'spark.remote'}: Spark Connect is not supported, set the cluster's own master")
    if asked and not MASTERS.fullmatch(asked):
        raise ConfigError(f"master {asked}: must be local[N], spark://HOST:PORT, yarn or k8s://…")


def _check_reachable(master: str) -> None:
    """Raise PeerUnreachable if no master of a standalone cluster takes a connection.

    Spark itself would try for 20 s and report that all masters are unresponsive.
    """
    errors = []
    for place in master.removeprefix("spark://").split(","):
        try:
            socket.create_connection(Address.parse(place), timeout=REACH_S).close()
            return
        except (OSError, ValueError) as error:
            errors.append(f"{place}: {getattr(error, 'strerror', None) or error}")
    raise PeerUnreachable(f"no Spark master answers at {master} ({'; '.join(errors)})", kind="connect", address=master)


# --- settings


def _settings(given: Mapping[str, str]) -> dict[str, str]:
    """Return all settings for a new session; with a package, set the environment of its JVM too.

    Raises ConfigError if the package cannot be used.
    """
    found = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH_ROWS),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if find_spec("pandas") is None:
        # With Arrow, Spark's default, every UDF needs pandas; without it Spark warns at each one.
        found["spark.sql.execution.pythonUDF.arrow.enabled"] = "false"
    if GATEWAY not in os.environ:
        found["spark.master"] = given.get("spark.master") or MASTER
        if found["spark.master"].startswith("local"):
            folder = tempfile.mkdtemp(prefix="rmqkit-spark-")
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            found |= {
                # The machine's host name may not resolve, or its address may change.
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
                # Tables of an in-memory catalog end with the session, so their files can go too.
                "spark.sql.warehouse.dir": folder,
                "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
                JAVA_OPTIONS: f"{LATE_COMPILER} {UNCHECKED}" if given.get(LEAN_KEY) == "true" else LATE_COMPILER,
            }
    found |= given
    if packed := given.get(package.PACKAGE_KEY):
        if GATEWAY in os.environ:
            raise ConfigError(f"{package.PACKAGE_KEY}: Spark runs already; pass the file to spark-submit, with --archives")
        if found["spark.master"].startswith("local"):
            raise ConfigError(f"{package.PACKAGE_KEY} is for workers on other machines: set the master of a cluster")
        package.check(packed)
        package.prepare_driver()
        found |= package.executor_settings(Path(packed).absolute(), given)
    options = found.get(JAVA_OPTIONS, "")
    if "log4j2.configurationFile" not in options and "log4j.configurationFile" not in options:
        quiet = Path(__file__).with_name("log4j2.properties").as_uri()
        found[JAVA_OPTIONS] = f"{options} -Dlog4j2.configurationFile={quiet}".strip()
    return found


# --- starting


def _start(app: str, settings: Mapping[str, str]) -> None:
    from pyspark.conf import SparkConf
    from pyspark.core.context import SparkContext
    from pyspark.find_spark_home import _find_spark_home

    # By default Spark's workers run `python3` from the PATH. If the virtual environment is not
    # activated, that is another Python.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    master = settings.get("spark.master", "")
    if master.startswith("spark://"):
        _check_reachable(master)
    conf = SparkConf(loadDefaults=SparkContext._jvm is not None)
    conf.setAll([*settings.items(), ("spark.app.name", app)])
    is_ours, is_this_python = GATEWAY not in os.environ, os.environ["PYSPARK_PYTHON"] == sys.executable
    # With another master than local[…] the executors have JVMs of their own.
    is_lean = settings.get(LEAN_KEY) == "true" and master.partition("[")[0] == "local"
    for_start: dict[str, str] = {}
    if is_ours and is_this_python and master.startswith("local") and (forking := _forking_python()):
        program, _server = forking
        for_start["PYSPARK_PYTHON"] = str(program)
    if is_lean and (lean := lean_home(Path(_find_spark_home()))):
        for_start["SPARK_HOME"] = str(lean)
    # The JVM takes PYSPARK_PYTHON for the Python of planners, and PySpark for that of functions.
    with _environment(for_start):
        gateway = _launch(conf) if is_ours and SparkContext._gateway is None else None
        SparkContext(conf=conf, gateway=gateway)


@contextlib.contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ[name] for name in changes if name in os.environ}
    os.environ |= changes
    try:
        yield
    finally:
        for name in changes:
            del os.environ[name]
        os.environ |= before


#: Returns the fork server of this process; started by the first call.
_forking_python = functools.cache(fork_server.start)


def _launch(conf: "SparkConf") -> Any:
    """Start a JVM and return its py4j gateway. The JVM ends with this process."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    launch: Any = launch_gateway
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    reading, writing = os.pipe()
    last: deque[str] = deque(maxlen=LINES_KEPT)
    forwarding = threading.Thread(target=_forward, args=(reading, last), daemon=True, name="jvm-stderr")
    forwarding.start()
    # At the end our write end is closed: the JVM has its own, and the pipe ends when the JVM exits.
    with os.fdopen(writing, "wb") as errors:
        try:
            return launch(conf, {"stderr": errors})
        except PySparkRuntimeError as error:
            errors.close()
            forwarding.join(timeout=1.0)
            output = " | ".join(last) or error
            raise SparkMissing(f"Spark's JVM ({java.source}: {java.home}) did not start: {output}") from None


def _forward(stderr: int, last: deque[str]) -> None:
    """Forward the stderr of the JVM line by line, without the lines of NOISE; keep the `last`."""
    with open(stderr, encoding="utf-8", errors="replace", newline="\n") as lines:
        for line in lines:
            if not line.startswith(NOISE):
                last.append(line.strip())
                # If our stderr is closed, keep reading, so that the JVM can write.
                with contextlib.suppress(OSError, ValueError):
                    sys.stderr.write(line)
