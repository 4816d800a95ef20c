"""A Spark session that works where rmqkit is installed: its Java found, its workers on this Python, its logs quiet.

`session()` starts one, or hands out the one that runs in this process. What it sets is a default that `conf` overrides;
what belongs to one machine alone (addresses, folders, how many shuffle partitions) is set for local masters only, so that
`spark://...` or `yarn` meets the cluster's own. Under `spark-submit` the JVM is there already: its master stays.

The JVM writes to stderr before any logging is configured. Its stderr is a pipe (`_JvmErrors`): a thread hands lines on but
for those that say nothing, and keeps the last ones for the error of a JVM that does not start.
"""

import atexit
import os
import shutil
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from rmqkit.errors import ConfigError, RmqkitError
from rmqkit.spark.java import JavaMissing, find_java

if TYPE_CHECKING:
    from pyspark.conf import SparkConf
    from pyspark.sql import SparkSession

__all__ = ["JavaMissing", "SparkMissing", "session"]

MASTER = "local[*]"
#: rows a record batch between Python and the JVM; our reader's batches have as many
BATCH_ROWS = 8192
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
#: beginnings of lines that a JVM writes at every start
NOISE = (
    "WARNING: Using incubator modules:",
    "Picked up JAVA_TOOL_OPTIONS:",
    "Using Spark's default log4j profile:",
    "Setting default log level to",
    "To adjust logging level use",
)
#: with them the JVM belongs to somebody else: spark-submit, or a notebook server
GATEWAY = "PYSPARK_GATEWAY_PORT"


class SparkMissing(RmqkitError):
    """The extra is not installed, or the JVM did not start. One line."""


def session(
    app: str = "rmqkit",
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    pushdown: bool = False,
) -> "SparkSession":
    """The Spark session of this process, started when there is none.

    `conf` (Spark's keys) overrides what rmqkit sets. `pushdown` lets the data source take over filters of batch queries:
    give the source its option `pushdown` as well. Raises SparkMissing, JavaMissing, ConfigError.
    """
    check_installed()
    from pyspark.core.context import SparkContext
    from pyspark.sql import SparkSession

    given = {key: str(value) for key, value in (conf or {}).items()}
    if pushdown:
        given.setdefault(PUSHDOWN, "true")
    _check_master(master, given)
    if SparkContext._active_spark_context is None:
        _start(app, _settings(master, given))
    running = SparkSession.builder.getOrCreate()
    _adopt(running, master or given.get("spark.master"), given)
    return running


def check_installed() -> None:
    """Raises SparkMissing, in one line, unless PySpark and what its columns need can be imported."""
    missing = [name for name in ("pyspark", "pyarrow", "numpy") if find_spec(name) is None]
    if missing:
        are = "is" if len(missing) == 1 else "are"
        raise SparkMissing(f"{' and '.join(missing)} {are} not installed: pip install 'rmqkit[spark]'")


def _check_master(master: str | None, given: Mapping[str, str]) -> None:
    told = given.get("spark.master")
    if master and told and master != told:
        raise ConfigError(f"two masters: {master}, and spark.master={told}")
    asked = master or told or ""
    if asked.startswith("sc://") or "spark.remote" in given:
        raise ConfigError(f"{asked or 'spark.remote'}: Spark Connect is not supported, name the cluster's own master")


def _adopt(running: "SparkSession", master: str | None, given: Mapping[str, str]) -> None:
    """What may still change in a session that runs; the rest must be as it is."""
    context = running.sparkContext
    if master and master != context.master:
        raise ConfigError(f"this process has a Spark session on {context.master}: stop it to start one on {master}")
    for key, value in given.items():
        if key.startswith("spark.sql.") and running.conf.isModifiable(key):
            running.conf.set(key, value)


# --- settings


def _settings(master: str | None, given: Mapping[str, str]) -> dict[str, str]:
    """Everything a new session is started with."""
    found = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH_ROWS),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if find_spec("pandas") is None:
        # Spark's default wants it, and says so at each function that is not made with Arrow.
        found["spark.sql.execution.pythonUDF.arrow.enabled"] = "false"
    if GATEWAY not in os.environ:
        found["spark.master"] = master or given.get("spark.master") or MASTER
        if found["spark.master"].startswith("local"):
            found |= _local()
    elif master:
        found["spark.master"] = master
    found |= given
    options = found.get(JAVA_OPTIONS, "")
    if "log4j2.configurationFile" not in options and "log4j.configurationFile" not in options:
        quiet = Path(__file__).with_name("log4j2.properties").as_uri()
        found[JAVA_OPTIONS] = f"{options} -Dlog4j2.configurationFile={quiet}".strip()
    return found


def _local() -> dict[str, str]:
    return {
        # The machine's own name may have no address, or one that changes.
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # Tables of an in-memory catalog end with the session, and so do their files.
        "spark.sql.warehouse.dir": _temporary_folder(),
        "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
    }


def _temporary_folder() -> str:
    folder = tempfile.mkdtemp(prefix="rmqkit-spark-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


# --- starting


def _start(app: str, settings: Mapping[str, str]) -> None:
    from pyspark.conf import SparkConf
    from pyspark.core.context import SparkContext

    # Spark's workers are `python3` of the PATH otherwise, which is another one outside an activated environment.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    conf = SparkConf(loadDefaults=SparkContext._jvm is not None)
    for key, value in settings.items():
        conf.set(key, value)
    conf.set("spark.app.name", app)
    gateway = None
    if GATEWAY not in os.environ and SparkContext._gateway is None:
        gateway = _launch(conf)
    SparkContext(conf=conf, gateway=gateway)


def _launch(conf: "SparkConf") -> Any:
    """A JVM with py4j's gateway in it; it ends with this process."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    launch: Any = launch_gateway
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    errors = _JvmErrors()
    try:
        return launch(conf, {"stderr": errors.writing})
    except PySparkRuntimeError as error:
        said = errors.ended()
        raise SparkMissing(f"Spark's JVM ({java.source}: {java.home}) did not start: {said or error}") from None
    finally:
        errors.handed_over()


class _JvmErrors:
    """The stderr of the JVM: handed on line by line, without those that it writes at every start."""

    LINES_KEPT = 20

    def __init__(self) -> None:
        reading, self.writing = os.pipe()
        self._last: deque[str] = deque(maxlen=self.LINES_KEPT)
        self._is_open = True
        self._thread = threading.Thread(
            target=self._hand_on, args=(os.fdopen(reading, "rb"),), daemon=True, name="jvm-stderr"
        )
        self._thread.start()

    def handed_over(self) -> None:
        """The JVM has its own end now: reading ends when the JVM does."""
        if self._is_open:
            self._is_open = False
            os.close(self.writing)

    def ended(self) -> str:
        """What a JVM that is gone said last, in one line."""
        self.handed_over()
        self._thread.join(timeout=1.0)
        return " | ".join(self._last)

    def _hand_on(self, pipe: IO[bytes]) -> None:
        with pipe:
            for raw in pipe:
                line = raw.decode(errors="replace")
                if not line.startswith(NOISE):
                    self._last.append(line.strip())
                    try:
                        sys.stderr.write(line)
                    except (OSError, ValueError):
                        continue  # nobody reads it; the JVM must be able to go on writing
