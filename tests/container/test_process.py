"""Several brokers in one real process: `rmqkit broker run -c … -c …` and `rmqkit container`."""

import os
import signal
import socket
import subprocess

import pytest

from rmqkit.process import __main__
from tests.cli.conftest import lifeline, make_shell  # noqa: F401
from tests.container.process import DEADLINE_S, NODE, Container
from tests.helpers import ports
from tests.shell.conftest import poll


@pytest.fixture
def shell(tmp_path, lifeline):  # noqa: F811
    return make_shell(tmp_path / "home", lifeline)


@pytest.fixture
def base():
    return ports.free_base(range(-2, 60))


@pytest.fixture
def container(shell, base):
    made = Container(shell.home / "container", base, shell.lifeline, shell.environment)
    yield made
    made.stop()


@pytest.fixture
def ask(shell, container):
    """A function that runs `rmqkit container …` against the container."""
    return lambda *words, **more: shell.run("container", *words, "--at", container.at, **more)


def test_brokers_come_and_go_and_the_others_go_on(shell, container, ask):
    a, b, c = (container.config(name, number) for number, name in enumerate(("a", "b", "c")))
    container.start(a, b)
    # The container's port opens shortly before its brokers' stores are ready.
    poll(lambda: set(container.brokers().values()) == {"serving"}, "both serve")
    told = shell.json("container", "list", "--at", container.at)["brokers"]
    assert [(each["name"], each["state"], each["config"]) for each in told] == [
        ("a", "serving", str(a)),
        ("b", "serving", str(b)),
    ]
    assert ask("add", c).stdout == f"added: {c}\n"
    assert container.brokers() == {"a": "serving", "b": "serving", "c": "serving"}
    assert "INFO c-0 serving" in container.log("c")
    assert ask("remove", "b:0").stdout == "removed: b:0\n"
    assert "INFO b-0 stopped" in container.log("b")
    assert not (container.folder / "b" / "store" / "abort").exists()
    assert container.brokers() == {"a": "serving", "c": "serving"}
    assert "has no broker b:0" in ask("remove", "b:0", code=1).stderr
    ask("add", b)

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


def test_a_broker_that_cannot_be_added_is_reported_and_the_others_serve_on(container, ask, tmp_path):
    a = container.config("a", 0)
    container.start(a)

    def told(path):
        return ask("add", path, code=1).stderr

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
    assert ask("add", container.config("b", 1)).returncode == 0


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
    assert __main__.run(__main__.parse_options(container.words(a, b))) == 2
    assert says in capsys.readouterr().err
    assert not (container.folder / "a" / "store").exists()


def test_one_whose_port_is_taken_stops_the_start_of_all_and_is_named(container):
    a, b = container.config("a", 0), container.config("b", 1)
    with socket.create_server(("127.0.0.1", container.base + 10)):
        done = subprocess.run([*NODE, *container.words(a, b)], capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 1
    assert f"error: b-0: 127.0.0.1:{container.base + 10} is taken by pid {os.getpid()}" in done.stderr
    assert "ERROR b-0 cannot start reason=" in container.log("b")


@pytest.mark.parametrize("port", ["x", "70000", "-1"])
def test_the_containers_port_is_checked(capsys, port):
    assert __main__.run(__main__.parse_options([f"--container-port={port}"])) == 2
    assert f"--container-port {port}: must be a port" in capsys.readouterr().err
