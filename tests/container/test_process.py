"""Several brokers in one real process: `rmqkit broker run -c … -c …`, and `rmqkit container` beside it."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from rmqkit import node
from rmqkit.cluster.caller import Caller
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.schemas.send import SendMessageRequestV2
from tests.cli.conftest import lifeline, make_shell  # noqa: F401
from tests.helpers import ports
from tests.shell.conftest import poll

DEADLINE_S = 20
NODE = [sys.executable, "-m", "rmqkit.node"]


@pytest.fixture
def shell(tmp_path, lifeline):  # noqa: F811
    return make_shell(tmp_path / "home", lifeline)


@pytest.fixture
def base():
    return ports.free_base(range(-2, 60))


class Container:
    """A container of a few brokers, its log on stderr."""

    def __init__(self, shell, base):
        self.shell = shell
        self.folder = shell.home / "container"
        self.base = base
        self.at = str(base + 50)
        self.process = None

    def config(self, name, number, **more):
        """A broker's file."""
        values = {
            "brokerName": name,
            "listenPort": self.base + 10 * number,
            "bindAddress": "127.0.0.1",
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "mappedFileSizeCommitLog": 1 << 20,
            "storePathRootDir": self.folder / name / "store",
            **more,
        }
        path = self.folder / name / "broker.conf"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        return path

    def words(self, *paths):
        files = [word for path in paths for word in ("-c", str(path))]
        return [*files, "--container-port", self.at, "--container-folder", str(self.folder), "--own-logs"]

    def start(self, *paths):
        self.process = subprocess.Popen(
            [*NODE, *self.words(*paths), "--lifeline", str(self.shell.lifeline)],
            stderr=subprocess.PIPE,
            text=True,
            env=self.shell.environment,
            pass_fds=(self.shell.lifeline,),
        )
        for line in self.process.stderr:
            if "container ready" in line:
                return self
        raise AssertionError("it ended")

    def run(self, *words, **more):
        return self.shell.run("container", *words, "--at", self.at, **more)

    def brokers(self):
        return {each["name"]: each["state"] for each in self.shell.json("container", "list", "--at", self.at)["brokers"]}

    def store_one(self, name, number):
        """A message to the broker's own topic, acknowledged."""
        request = SendMessageRequestV2(
            producer_group="p",
            topic=name,
            default_topic="TBW102",
            default_topic_queue_nums=1,
            queue_id=0,
            sys_flag=0,
            born_timestamp=1,
            flag=0,
        )
        with Caller("127.0.0.1", self.base + 10 * number, time.monotonic() + DEADLINE_S) as broker:
            broker.ask(RequestCode.SEND_MESSAGE_V2, request, b"kept")

    def log(self, name):
        return (self.folder / name / "log").read_text()

    def stop(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process.stderr.close()


@pytest.fixture
def container(shell, base):
    made = Container(shell, base)
    yield made
    made.stop()


def test_brokers_come_and_go_and_the_others_go_on(container):
    a, b, c = (container.config(name, number) for number, name in enumerate(("a", "b", "c")))
    container.start(a, b)
    assert container.brokers() == {"a": "serving", "b": "serving"}
    assert container.run("add", c).stdout == f"added: {c}\n"
    assert container.brokers() == {"a": "serving", "b": "serving", "c": "serving"}
    assert "INFO c-0 serving" in container.log("c")
    assert container.run("remove", "b:0").stdout == "removed: b:0\n"
    assert "INFO b-0 stopped" in container.log("b")
    assert not (container.folder / "b" / "store" / "abort").exists()
    assert container.brokers() == {"a": "serving", "c": "serving"}
    assert "has no broker b:0" in container.run("remove", "b:0", code=1).stderr
    container.run("add", b)

    container.store_one("a", 0)
    container.store_one("c", 2)
    container.stop()
    container.start(a, b, c)
    for name in "ac":
        poll(lambda name=name: "serving" in container.log(name).splitlines()[-1], f"{name} serves")
        assert "log_end=0" not in container.log(name).splitlines()[-1]

    container.process.send_signal(signal.SIGTERM)
    assert container.process.wait(DEADLINE_S) == 0
    for name in "abc":
        assert f"INFO {name}-0 stopped" in container.log(name)
        assert not (container.folder / name / "store" / "abort").exists()


def test_what_cannot_be_added_is_told_and_nobody_else_notices(container, tmp_path):
    a = container.config("a", 0)
    container.start(a)

    def told(path):
        return container.run("add", path, code=1).stderr

    assert "these files" not in told(a)
    assert "broker a:0 of cluster DefaultCluster is in this process already" in told(a)
    assert "storePathRootDir" in told(container.config("b", 1, storePathRootDir=container.folder / "a" / "store"))
    assert "is one of a-0's" in told(container.config("b", 0))
    assert "unknown key 'lisenPort'" in told(container.config("b", 1, lisenPort=1))
    assert "a SLAVE needs an id above 0" in told(container.config("b", 1, brokerRole="SLAVE", brokerId=0))
    assert "cannot read" in told(container.folder / "absent.conf")
    outside = tmp_path / "secret.conf"
    outside.write_text("password=x\n")
    (container.folder / "link.conf").symlink_to(outside)
    for path in (outside, tmp_path / "absent", container.folder / "link.conf", container.folder / ".." / "secret.conf"):
        said = told(path)
        assert "reads the files it was started with" in said
        assert "password" not in said
    damaged = container.config("d", 1)
    log = container.folder / "d" / "store" / "commitlog"
    log.mkdir(parents=True)
    (log / "00000000000000000000").write_bytes(b"x" * 5000)
    (log.parent / "checkpoint").write_bytes(b"\x7f" * 4096)
    assert "the commit log is damaged" in told(damaged)
    assert container.brokers() == {"a": "serving"}
    assert container.run("add", container.config("b", 1)).returncode == 0


@pytest.mark.parametrize(
    ("second", "says"),
    [
        ({"brokerName": "a"}, "is in this process already"),
        ({"listenPort": 0}, "is one of a-0's"),
        ({"mappedFileSizeCommitLog": "many"}, "mappedFileSizeCommitLog"),
    ],
)
def test_one_with_wrong_settings_stops_the_start_of_all(container, capsys, second, says):
    second = {key: container.base if value == 0 else value for key, value in second.items()}
    a, b = container.config("a", 0), container.config("b", 1, **second)
    assert node.run(node.parse_options(container.words(a, b))) == 2
    assert says in capsys.readouterr().err
    assert not (container.folder / "a" / "store").exists()


def test_one_whose_port_is_taken_stops_the_start_of_all_and_is_named(container):
    a, b = container.config("a", 0), container.config("b", 1)
    with socket.create_server(("127.0.0.1", container.base + 10)):
        done = subprocess.run([*NODE, *container.words(a, b)], capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 1
    assert f"error: b-0: 127.0.0.1:{container.base + 10} is taken by pid {os.getpid()}" in done.stderr


@pytest.mark.parametrize("port", ["x", "70000", "-1"])
def test_the_containers_port_is_checked(capsys, port):
    assert node.run(node.parse_options([f"--container-port={port}"])) == 2
    assert f"--container-port {port}: must be a port" in capsys.readouterr().err
