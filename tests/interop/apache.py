"""Starts Apache RocketMQ's own name server, broker and client programs from Maven's jars.

`classpath()` builds the driver project beside this file and returns the class path that the build
wrote. It works offline if the local Maven repository has the jars.

`start_java` starts one JVM with a small heap. The JVM's standard input is its lifeline:
`rmqkit.interop.Lifeline` ends the JVM when that pipe closes. So no JVM outlives the test process,
even if the test process is killed.

`ApacheCluster` is one name server and one broker in a temporary folder, on free ports of 127.0.0.1.
It is ready when both answer the real protocol: the name server returns a route for the broker's
topic `TBW102`, and the broker answers GET_MAX_OFFSET. All paths in its configuration are relative
to that folder, so its responses never contain paths of this machine.

    with ApacheCluster() as apache:
        print(apache.namesrv, apache.broker_address, apache.home)
"""

import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.helpers.file_lock import file_lock
from tests.helpers.ports import free_base

from . import older

DRIVER = Path(__file__).parent / "driver"
VERSION = "5.5.0"
#: the older release; tests use only its client and its admin tools
OLDER = "4.9.8"
HOST = "127.0.0.1"
#: RocksDB of a broker with access control takes long on a busy machine
READY_TIMEOUT_S = 180.0

# Packages that Apache's start scripts and netty open on Java 9 and later.
JAVA_OPENS = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.util.concurrent=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
)
JAVA_SMALL: tuple[str, ...] = (
    "-XX:+UseSerialGC",
    "-XX:+IgnoreUnrecognizedVMOptions",
    "-Xshare:auto",
    "-Xss512k",
)

_GET_ROUTE = 105
_GET_MAX_OFFSET = 30
#: the answer of a broker with access control to a request without signature
_NO_PERMISSION = 16


class ApacheError(RuntimeError):
    """An Apache program did not start or did not answer; the text ends with its last output."""


def missing_tools() -> str | None:
    """Return which programs are missing on this machine, as a sentence, or None."""
    lacking = [name for name in ("java", "mvn") if shutil.which(name) is None]
    return f"not on the PATH: {', '.join(lacking)}" if lacking else None


def require_tools() -> None:
    """End a benchmark with an error if its programs are missing."""
    lacking = missing_tools()
    if lacking:
        sys.exit(f"error: the benchmark needs Java 17 and Maven; {lacking}")


def classpath(version: str = VERSION) -> str:
    """Return the driver's class path. Build the driver if a source or the pom is newer than it.

    Raises `ApacheError` with Maven's last lines if both the offline and the online build fail.
    """
    with file_lock(DRIVER / "target" / "lock"):
        return _classpath(version)


def _classpath(version: str) -> str:
    target = DRIVER / "target" if version == VERSION else DRIVER / "target" / version
    listed = target / "classpath.txt"
    stamp = target / "built"
    sources = [DRIVER / "pom.xml", *DRIVER.glob("src/**/*.java")]
    fresh = stamp.exists() and listed.exists() and all(s.stat().st_mtime <= stamp.stat().st_mtime for s in sources)
    if not fresh or not all(Path(jar).exists() for jar in listed.read_text().strip().split(os.pathsep)):
        if version != VERSION:
            older.write_sources(DRIVER, DRIVER / "target" / f"sources-{version}")
        _build([] if version == VERSION else [f"-Pclient-{version}"])
        stamp.touch()
    return os.pathsep.join([str(target / "classes"), listed.read_text().strip()])


def _build(profile: list[str]) -> None:
    said = ""
    for flags in (["-o"], []):
        command = ["mvn", "-q", "-B", *flags, *profile, "process-classes"]
        done = subprocess.run(command, cwd=DRIVER, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
        said = done.stdout + done.stderr
    raise ApacheError("the driver does not build:\n" + tail(said, 20))


def start_java(
    main: str,
    args: list[str],
    *,
    home: Path,
    version: str = VERSION,
    heap_mb: int = 256,
    small: bool = True,
    lifeline: bool = True,
    properties: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    stdout: int | Any = subprocess.PIPE,
    stderr: int | Any = subprocess.STDOUT,
    prefix: Sequence[str] = (),
) -> subprocess.Popen[str]:
    """Start a JVM that runs `main` in folder `home`; `prefix` is a command that starts it.

    `home` is also Java's `user.home`, so client logs and offset files are written there. `small`
    suits many JVMs on a small machine; without it the JVM picks its own options, as users run it. A
    `main` that reads its standard input until it closes needs no `lifeline`.
    """
    settings = {
        "user.home": ".",
        "rocketmq.home.dir": ".",
        "rocketmq.client.logRoot": "./logs/client",
        "rocketmq.client.logUseSlf4j": "false",
        "java.io.tmpdir": str(home),
        "file.encoding": "UTF-8",
        "java.net.preferIPv4Stack": "false",
        **(properties or {}),
    }
    heap = ["-Xms64m", f"-Xmx{heap_mb}m", *JAVA_SMALL] if small else [f"-Xms{heap_mb}m", f"-Xmx{heap_mb}m"]
    command = [*prefix, "java", *heap, *JAVA_OPENS]
    command += [f"-D{key}={value}" for key, value in settings.items()]
    command += ["-cp", classpath(version), *(["rmqkit.interop.Lifeline"] if lifeline else []), main, *args]
    return subprocess.Popen(
        command,
        cwd=home,
        env={**os.environ, "NAMESRV_ADDR": "", **(env or {})},
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=stderr,
        text=True,
    )


def free_ports(host: str = HOST) -> tuple[int, int]:
    """Return free ports for a name server and for a broker at P.

    The ports P-2 and P+1, which the broker opens too, are also free.
    """
    port = free_base((-2, 0, 1, 4), (host,))
    return port + 4, port


def ask(
    address: str,
    code: int,
    fields: Mapping[str, str],
    body: bytes = b"",
    *,
    opaque: int = 1,
    version: int = 479,
    timeout_s: float = 3.0,
) -> dict[str, Any]:
    """Send one request on a new connection and return the response's header. Raises OSError."""
    return ask_whole(address, code, fields, body, opaque=opaque, version=version, timeout_s=timeout_s)[0]


def ask_whole(
    address: str,
    code: int,
    fields: Mapping[str, str],
    body: bytes = b"",
    *,
    opaque: int = 1,
    version: int = 479,
    timeout_s: float = 3.0,
) -> tuple[dict[str, Any], bytes]:
    """Send one request on a new connection and return the response's header and body.

    For a response with a binary header the returned header has only its code. Raises OSError.
    """
    host, _, port = address.rpartition(":")
    header = json.dumps(
        {"code": code, "extFields": dict(fields), "flag": 0, "language": "OTHER", "opaque": opaque, "version": version},
        separators=(",", ":"),
    ).encode()
    frame = struct.pack(">iI", 4 + len(header) + len(body), len(header)) + header + body
    with socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s) as sock:
        sock.sendall(frame)
        length, mark = struct.unpack(">iI", _read_exactly(sock, 8))
        rest = _read_exactly(sock, length - 4)
    size = mark & 0xFFFFFF
    if mark >> 24:
        return {"code": struct.unpack_from(">h", rest)[0]}, rest[size:]
    answer: dict[str, Any] = json.loads(rest[:size])
    return answer, rest[size:]


def _read_exactly(sock: socket.socket, size: int) -> bytes:
    got = bytearray()
    while len(got) < size:
        piece = sock.recv(size - len(got))
        if not piece:
            raise ConnectionError("closed before its answer")
        got += piece
    return bytes(got)


class ApacheCluster:
    """One Apache name server and one Apache broker (`broker-a` of `DefaultCluster`, id 0).

    `properties` are Java system properties of both JVMs. `broker_properties` and
    `nameserver_properties` are written to the configuration files unchanged and override the
    defaults below.

    Both servers listen on `bind` but advertise 127.0.0.1. So a proxy on 127.0.0.1 can use the same
    ports and see all traffic. With `host` the broker listens there and advertises that address;
    `nameserver_host` is the address of its name server. `prefix` is a command that starts the
    servers, such as one that enters another network namespace.
    """

    def __init__(
        self,
        *,
        home: Path | None = None,
        bind: str | None = None,
        host: str = HOST,
        nameserver_host: str | None = None,
        prefix: Sequence[str] = (),
        namesrv_seen_by_broker: str | None = None,
        ports: tuple[int, int] | None = None,
        broker_properties: Mapping[str, str] | None = None,
        nameserver_properties: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
        heap_mb: int = 512,
        small: bool = True,
    ) -> None:
        self._own_home = home is None
        self.home = Path(tempfile.mkdtemp(prefix="apache-")) if home is None else home
        bind = bind or host
        self.nameserver_port, self.broker_port = ports or free_ports(bind)
        self.bind = bind
        self.prefix = tuple(prefix)
        self._nameserver_bind = nameserver_host or bind
        self.namesrv = f"{nameserver_host or host}:{self.nameserver_port}"
        self.broker_address = f"{host}:{self.broker_port}"
        self.store = self.home / "store"
        self.nameserver: subprocess.Popen[str] | None = None
        self.broker: subprocess.Popen[str] | None = None
        self._env = dict(env or {})
        self._properties = dict(properties or {})
        self._heap_mb = heap_mb
        self._small = small
        self._nameserver_settings = {
            "listenPort": str(self.nameserver_port),
            "bindAddress": bind,
            "kvConfigPath": "./namesrv/kvConfig.json",
            "configStorePath": "./namesrv/namesrv.properties",
            **(nameserver_properties or {}),
        }
        self._broker_settings = {
            "brokerName": "broker-a",
            "brokerClusterName": "DefaultCluster",
            "brokerId": "0",
            "brokerIP1": host,
            "brokerIP2": host,
            "listenPort": str(self.broker_port),
            "bindAddress": bind,
            "namesrvAddr": namesrv_seen_by_broker or self.namesrv,
            "storePathRootDir": "./store",
            "storePathCommitLog": "./store/commitlog",
            "mappedFileSizeCommitLog": str(64 * 1024 * 1024),
            "mappedFileSizeConsumeQueue": str(20 * 20_000),
            "maxIndexNum": "200000",
            "maxHashSlotNum": "50000",
            "mappedFileSizeTimerLog": str(1024 * 1024),
            "diskMaxUsedSpaceRatio": "98",
            "autoCreateTopicEnable": "true",
            "autoCreateSubscriptionGroup": "true",
            "brokerRole": "ASYNC_MASTER",
            "flushDiskType": "ASYNC_FLUSH",
            **(broker_properties or {}),
        }

    def __enter__(self) -> "ApacheCluster":
        try:
            self.start_nameserver()
            self.start_broker()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    def start_nameserver(self) -> None:
        """Start the name server and return when it answers. Raises `ApacheError`."""
        self.nameserver = self._start("nameserver", "org.apache.rocketmq.namesrv.NamesrvStartup", self._nameserver_settings)
        bound = f"{self.bind}:{self.nameserver_port}"
        self._await(self.nameserver, "nameserver", lambda: "code" in ask(bound, _GET_ROUTE, {"topic": "TBW102"}))

    def start_broker(self, *, wait: bool = True) -> None:
        """Start the broker. Return when it answers and the name server has its route.

        Without `wait`, return at once. Raises `ApacheError`.
        """
        self.broker = self._start("broker", "org.apache.rocketmq.broker.BrokerStartup", self._broker_settings)
        if not wait:
            return
        bound, served = f"{self._nameserver_bind}:{self.nameserver_port}", f"{self.bind}:{self.broker_port}"
        probe = {"topic": "TBW102", "queueId": "0"}
        self._await(
            self.broker,
            "broker",
            lambda: (
                ask(bound, _GET_ROUTE, {"topic": "TBW102"})["code"] == 0
                and ask(served, _GET_MAX_OFFSET, probe)["code"] in (0, _NO_PERMISSION)
            ),
        )

    def set_broker(self, settings: Mapping[str, str]) -> None:
        """Change settings of the broker; they apply from its next start."""
        self._broker_settings.update(settings)

    def stop_broker(self, *, clean: bool = True) -> None:
        """Stop the broker and wait for its end.

        `clean` sends SIGTERM: the broker flushes and removes its abort file. Otherwise SIGKILL.
        """
        end(self.broker, clean=clean)
        self.broker = None

    def stop(self) -> None:
        """Kill both servers and remove the folder if this object created it."""
        end(self.broker, clean=False)
        end(self.nameserver, clean=False)
        self.broker = self.nameserver = None
        if self._own_home:
            shutil.rmtree(self.home, ignore_errors=True)

    def output(self, node: str) -> str:
        path = self.home / f"{node}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def _start(self, node: str, main: str, settings: Mapping[str, str]) -> subprocess.Popen[str]:
        self.home.mkdir(parents=True, exist_ok=True)
        for folder in ("namesrv", "logs"):
            (self.home / folder).mkdir(exist_ok=True)
        conf = f"{node}.conf"
        (self.home / conf).write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        with open(self.home / f"{node}.out", "ab") as out:
            return start_java(
                main,
                ["-c", conf],
                home=self.home,
                heap_mb=self._heap_mb if node == "broker" else 128,
                small=self._small,
                env=self._env,
                properties={"user.home": f"./{node}", **self._properties},
                stdout=out,
                prefix=self.prefix,
            )

    def _await(self, process: subprocess.Popen[str], node: str, answers: Any) -> None:
        for _ in _until(time.monotonic() + READY_TIMEOUT_S):
            if process.poll() is not None:
                raise ApacheError(f"Apache's {node} ended ({process.returncode}):\n{tail(self.output(node), 20)}")
            try:
                if answers():
                    return
            except OSError:
                pass
        raise ApacheError(f"Apache's {node} does not answer:\n{tail(self.output(node), 20)}")


def _until(deadline_s: float, pause_s: float = 0.1) -> Iterator[None]:
    while time.monotonic() < deadline_s:
        yield
        time.sleep(pause_s)


def end(process: subprocess.Popen[str] | None, *, clean: bool) -> None:
    if process is None:
        return
    if process.poll() is None and clean:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            pass
    if process.poll() is None:
        process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def tail(text: str, lines: int) -> str:
    """Return the last lines without logback's messages about its own set-up."""
    return "\n".join([line for line in text.splitlines() if "|-INFO in" not in line][-lines:])
