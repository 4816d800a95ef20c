"""A single node's process: `python -m rmqkit.process`, `rmqkit nameserver run`, `broker run`."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from rmqkit.process import __main__

NODE = [sys.executable, "-m", "rmqkit.process"]


class Running:
    """A node in the foreground, with its log on stderr."""

    def __init__(self, shell, *words, command=NODE, pass_fds=None):
        self.process = subprocess.Popen(
            [*command, *map(str, words)],
            stderr=subprocess.PIPE,
            text=True,
            env=shell.environment,
            cwd=shell.home,
            pass_fds=(shell.lifeline,) if pass_fds is None else pass_fds,
        )
        self.lines = []

    def ready(self):
        """Wait for the ready line and return it."""
        for line in self.process.stderr:
            self.lines.append(line)
            if " ready " in line or '"ready"' in line:
                return line
        raise AssertionError("".join(self.lines))

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()


def nameserver_words(shell):
    store = shell.home / "ns"
    return (
        "--kind",
        "nameserver",
        *settings(
            listenPort=0, bindAddress="127.0.0.1", kvConfigPath=store / "kv.json", configStorePath=store / "c.properties"
        ),
    )


def broker_words(shell, **more):
    return settings(
        **{
            "listenPort": 0,
            "bindAddress": "127.0.0.1",
            "brokerIP1": "127.0.0.1",
            "storePathRootDir": shell.home / "store",
            **more,
        }
    )


def settings(**values):
    return tuple(word for key, value in values.items() for word in ("--set", f"{key}={value}"))


def test_a_node_is_ready_and_stops_cleanly(shell):
    with Running(shell, *nameserver_words(shell)) as running:
        port = int(re.search(r"remoting_port=(\d+)", running.ready())[1])
        socket.create_connection(("127.0.0.1", port), 5).close()
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(20) == 0


def test_a_broker_that_may_choose_takes_two_ports_that_belong_together(shell):
    with Running(shell, *broker_words(shell), "--log-format", "json") as running:
        ready = json.loads(running.ready())["fields"]
        assert ready["vip_port"] == ready["remoting_port"] - 2
        for port in (ready["remoting_port"], ready["vip_port"]):
            socket.create_connection(("127.0.0.1", port), 5).close()
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(20) == 0


def test_a_node_loads_nothing_of_the_command_line(shell):
    command = [sys.executable, "-X", "importtime", "-m", "rmqkit.process"]
    with Running(shell, *broker_words(shell), command=command) as running:
        running.ready()
        running.process.send_signal(signal.SIGTERM)
        lines = [*running.lines, *running.process.stderr]
    modules = {line.rpartition("|")[2].strip().split(".")[0] for line in lines if line.startswith("import time:")}
    assert "rmqkit" in modules
    assert modules & {"typer", "rich", "psutil", "click", "pydantic", "tomli_w", "h11", "prometheus_client"} == set()


def scraped(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return answer.read().decode()


def test_a_node_with_metrics_is_scraped(shell):
    own = settings(metricsExporterType="PROM", metricsPromExporterPort=0, metricsPromExporterHost="127.0.0.1")
    for words, name in ((broker_words(shell), "rocketmq_topic_number"), (nameserver_words(shell), "rmqkit_topics")):
        with Running(shell, *words, *own) as running:
            port = int(re.search(r"metrics_port=(\d+)", running.ready())[1])
            assert f"# TYPE {name} gauge" in scraped(port)
            # A scraper that stays connected does not keep the node from stopping.
            with socket.create_connection(("127.0.0.1", port), 5) as idle:
                idle.sendall(b"GET /metrics")
                running.process.send_signal(signal.SIGTERM)
                assert running.process.wait(20) == 0


def test_a_taken_metrics_port_is_told(shell):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        own = settings(metricsExporterType="PROM", metricsPromExporterPort=port)
        assert f"127.0.0.1:{port} is taken by pid {os.getpid()}" in refused(shell, *broker_words(shell), *own, code=1)


def test_a_log_of_json_is_json_to_its_end(shell):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        own = settings(listenPort=listener.getsockname()[1])
        told = refused(shell, *broker_words(shell), *own, "--log-format", "json", "--log-file", "own.log", code=1)
    assert "is taken" in told
    (line,) = (shell.home / "own.log").read_text().splitlines()
    assert "is taken" in json.loads(line)["fields"]["reason"]


def test_a_log_file_is_rotated(shell):
    own = settings(logFileSizeMax=4096, logFilesMax=2, forceRegister="false")
    with Running(shell, *broker_words(shell), *own, "--log-file", "own.log") as running:
        log = shell.home / "own.log"
        port = int(
            re.search(
                r"remoting_port=(\d+)", until(lambda: log.exists() and "ready" in log.read_text() and log.read_text())
            )[1]
        )
        for _ in range(120):
            with socket.create_connection(("127.0.0.1", port), 5) as garbage:
                garbage.sendall(b"GET / HTTP/1.1\r\n\r\n")
                garbage.recv(100)
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(20) == 0
    assert sorted(path.name for path in shell.home.glob("own.log*")) == ["own.log", "own.log.1", "own.log.2"]
    assert all(path.stat().st_size <= 4096 for path in shell.home.glob("own.log*"))


def until(reached):
    deadline_s = time.monotonic() + 20
    while not (found := reached()):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    return found


@pytest.mark.long
def test_the_console_commands_run_the_same_node(shell):
    from tests.cli.conftest import COMMAND

    for words in (("nameserver", "run", *nameserver_words(shell)[2:]), ("broker", "run", *broker_words(shell))):
        with Running(shell, *words, command=COMMAND) as running:
            running.ready()
            running.process.send_signal(signal.SIGINT)
            assert running.process.wait(20) == 0


def test_a_node_ends_when_its_lifeline_does(shell):
    reading, writing = os.pipe()
    os.set_inheritable(reading, True)
    with Running(shell, *nameserver_words(shell), "--lifeline", reading, pass_fds=(reading,)) as running:
        os.close(reading)
        running.ready()
        os.close(writing)
        running.process.wait(20)


def refused(shell, *words, code, command=NODE):
    return shell.outside.error(*words, code=code, command=command)


def test_python_o_is_refused(shell):
    told = refused(shell, code=1, command=[sys.executable, "-O", "-m", "rmqkit.process"])
    assert "python -O" in told


def test_a_taken_port_is_reported_with_the_pid_of_its_owner(shell):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        told = refused(shell, *broker_words(shell, listenPort=port), code=1)
    assert f"127.0.0.1:{port} is taken by pid {os.getpid()}" in told


def test_a_store_in_use_is_told(shell):
    with Running(shell, *broker_words(shell)) as running:
        running.ready()
        told = refused(shell, *broker_words(shell), code=1)
    assert str(shell.home / "store") in told
    assert "in use" in told


def test_a_store_that_cannot_be_made_is_told(shell):
    (shell.home / "file").write_text("")
    told = refused(shell, *broker_words(shell, storePathRootDir=shell.home / "file" / "store"), code=1)
    assert str(shell.home / "file") in told


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--set", "lisenPort=1"), "did you mean listenPort?"),
        (("--set", "listenPort"), "key=value"),
        (("--set", "listenPort=x"), "listenPort"),
        (("--set", "aclEnable=true"), "aclEnable"),
        (("-c", "absent.toml"), "absent.toml"),
        (("-c", "broken.toml"), "broken.toml"),
        (("--set", "storageEngine=maped"), "did you mean mapped?"),
        (("--set", "metricsExporterType=OTLP_GRPC"), "OTLP_GRPC in --set is refused: the Prometheus endpoint is the only"),
        (("--set", "metricsExporterType=prom"), "one of DISABLE, OTLP_GRPC, PROM, LOG"),
        (("--set", "metricsPromExporterPort=70000"), "from 0 to 65535"),
        (("--set", "metricsLabel=a=b"), "name:value pairs"),
        (("--set", "logFileSizeMax=10"), "at least 4096"),
        (("--set", "brokerIP1=nohost.invalid"), "brokerIP1 = 'nohost.invalid': no such host"),
        (("--kind", "proxy"), "--kind"),
        (("--nonsense",), "--nonsense"),
    ],
)
def test_wrong_settings_are_one_line_and_exit_code_2(tmp_path, monkeypatch, capsys, words, says):
    """Runs in this process: the mistakes are found before anything starts."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.toml").write_text("a = = 1")
    with pytest.raises(SystemExit) as ended:
        sys.exit(__main__.run(__main__.parse_options(words)))
    told = capsys.readouterr().err.splitlines()
    assert (ended.value.code, len(told)) == (2, 1)
    assert told[0].startswith("error: ")
    assert says in told[0]


def test_a_broker_address_may_be_a_name(shell):
    with Running(shell, *broker_words(shell, brokerIP1="localhost")) as running:
        running.ready()
        assert any("address=127.0.0.1:" in line for line in running.lines)


def test_damaged_files_are_named_and_left_as_they_are(shell):
    log = shell.home / "store" / "commitlog" / "00000000000000000000"
    log.parent.mkdir(parents=True)
    log.write_text("hello")
    assert str(log) in refused(shell, *broker_words(shell), code=1)
    assert log.read_text() == "hello"


def test_an_apache_conf_is_taken_as_it_is(shell):
    (shell.home / "broker.conf").write_text(
        "brokerClusterName = DefaultCluster\nbrokerName=broker-x\nbrokerId = 0\ndeleteWhen = 04\nfileReservedTime = 48\n"
        "brokerRole = ASYNC_MASTER\nflushDiskType = ASYNC_FLUSH\nlistenPort=0\nbrokerIP1=127.0.0.1\n"
        f"storePathRootDir={shell.home / 'store'}\n"
    )
    with Running(shell, "-c", "broker.conf") as running:
        assert "broker-x-0 ready" in running.ready()
