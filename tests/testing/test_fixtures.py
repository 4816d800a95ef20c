"""The pytest fixtures as in a user's project: separate pytest runs, with warnings as errors."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent

import psutil
import pytest

from rmqkit.testing import RunningCluster, factories

LIMIT_S = 60

Done = subprocess.CompletedProcess[str]


def is_alive(pid: int) -> bool:
    """Whether the process runs. A zombie has ended: its parent has not collected it yet."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def write(folder: Path, **files: str) -> None:
    """Write files: `test_a="..."` becomes test_a.py, `ini="..."` the options in pytest.ini."""
    for name, text in files.items():
        content = f"[pytest]\n{dedent(text)}" if name == "ini" else dedent(text)
        (folder / ("pytest.ini" if name == "ini" else f"{name}.py")).write_text(content)


def command(folder: Path, *words: str) -> list[str]:
    return [
        sys.executable, "-m", "pytest", "-W", "error", "-p", "no:cacheprovider", "-q", "-rA", "--color=no",
        "--basetemp", str(folder / "temporary"), str(folder), *words,
    ]  # fmt: skip


def run(folder: Path, *words: str, **env: str) -> Done:
    """Run pytest in the project `folder`, without this run's rmqkit and pytest variables."""
    kept = {
        name: value for name, value in os.environ.items() if name not in ("NAMESRV_ADDR", "RMQKIT_HOME", "PYTEST_ADDOPTS")
    }
    return subprocess.run(
        command(folder, *words),
        cwd=folder,
        env={**kept, **env},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def outcomes(done: Done) -> dict[str, str]:
    """Return the outcome of each test as `-rA` prints it.

    A test that failed in its teardown has two outcomes, such as "ERROR PASSED".
    """
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith(("PASSED ", "FAILED ", "ERROR "))]
    found: dict[str, str] = {}
    for outcome, test, *_ in lines:
        name = test.partition("::")[2]
        found[name] = " ".join(sorted(filter(None, [found.get(name), outcome])))
    return found


def test_unused_they_cost_nothing(tmp_path):
    write(
        tmp_path,
        test_light="""
        import sys

        def test_light():
            mine = sorted(name for name in sys.modules if name.partition(".")[0] == "rmqkit")
            assert mine == ["rmqkit", "rmqkit.testing", "rmqkit.testing.factories", "rmqkit.testing.fixtures"]
            assert not {"psutil", "msgspec", "typer"} & set(sys.modules)
        """,
    )
    done = run(tmp_path)
    assert done.returncode == 0, done.stdout


@pytest.mark.long
def test_a_session_of_tests(tmp_path):
    """All tests share one cluster, and each has its own names.

    The fixtures repair what a test has broken, and report a node that ended by itself.
    """
    write(
        tmp_path,
        ini="""
        rmqkit_groups = 2
        rmqkit_replicas = 1
        rmqkit_settings =
            flushDiskType = SYNC_FLUSH
            plugin.mapped.any = 1
        """,
        conftest="""
        from rmqkit.testing import factories

        other = factories.clean("rmqkit_cluster")
        """,
        test_story="""
        import os
        from pathlib import Path

        from rmqkit import Message

        SEEN = {}

        def test_1_the_cluster_is_as_asked_for(rmqkit_cluster):
            assert rmqkit_cluster.cluster.description.groups == 2
            SEEN["cluster"] = rmqkit_cluster
            for node in ("broker-a-0", "broker-b-0"):
                text = (rmqkit_cluster.cluster.node_folder(node) / "node.toml").read_text()
                assert 'flushDiskType = "SYNC_FLUSH"' in text
            assert rmqkit_cluster.env["NAMESRV_ADDR"] == rmqkit_cluster.namesrv
            assert Path(rmqkit_cluster.env["RMQKIT_HOME"]) == rmqkit_cluster.cluster.home

        def test_2_messages_go_in_and_come_out(rmqkit_clean):
            assert rmqkit_clean.running is SEEN["cluster"]
            topic, group = rmqkit_clean.topic("orders"), rmqkit_clean.group("readers")
            SEEN["topic"], SEEN["group"] = topic, group
            consumer = rmqkit_clean.pull_consumer(group, consume_from="first")
            consumer.subscribe(topic)
            producer = SEEN["producer"] = rmqkit_clean.producer()
            for number in range(8):
                producer.send(Message(topic, str(number).encode()))
            bodies = set()
            while len(bodies) < 8:
                bodies.update(message.body for message in consumer.poll(timeout_ms=5_000))
            consumer.commit()
            assert group in rmqkit_clean.admin.groups()
            producer.send(Message(rmqkit_clean.name("by-send"), b"x"))
            assert rmqkit_clean.name("by-send") in rmqkit_clean.admin.topics()

        def test_3_nothing_is_left_of_it(other):
            admin = other.admin
            assert not [name for name in [*admin.topics(), *admin.groups()] if "test_2" in name]
            assert other.topic("orders") != SEEN["topic"]
            assert other.prefix.startswith("test_3_nothing_is_left_of_it-")
            try:
                SEEN["producer"].send(Message("T", b"x"))
            except Exception as error:
                assert "closed" in str(error)
            else:
                raise AssertionError("the producer of the other test is open")

        def test_4_breaks_the_cluster(rmqkit_clean):
            rmqkit_clean.cluster.kill("broker-a-0")
            rmqkit_clean.cluster.pause("broker-b-0")

        def test_5_finds_it_whole(rmqkit_clean):
            assert len(rmqkit_clean.cluster.running()) == 3
            rmqkit_clean.producer().send(Message(rmqkit_clean.topic(), b"x"))

        def test_6_a_node_dies_by_itself(rmqkit_clean):
            process = rmqkit_clean.cluster.running()["broker-a-0"]
            os.kill(process.pid, 9)
            process.wait()

        def test_7_finds_it_whole_too(rmqkit_clean):
            assert len(rmqkit_clean.cluster.running()) == 3
            Path("pids").write_text(" ".join(str(each.pid) for each in rmqkit_clean.cluster.running().values()))
        """,
    )
    done = run(tmp_path)
    assert outcomes(done) == {
        "test_1_the_cluster_is_as_asked_for": "PASSED",
        "test_2_messages_go_in_and_come_out": "PASSED",
        "test_3_nothing_is_left_of_it": "PASSED",
        "test_4_breaks_the_cluster": "PASSED",
        "test_5_finds_it_whole": "PASSED",
        "test_6_a_node_dies_by_itself": "ERROR PASSED",
        "test_7_finds_it_whole_too": "PASSED",
    }, done.stdout
    assert "broker-a-0 ended by itself; the end of its log:" in done.stdout
    assert "serving" in done.stdout, "the log's lines"
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 3
    until(lambda: not [pid for pid in pids if is_alive(pid)], "the nodes are gone")


@pytest.mark.long
def test_a_killed_pytest_leaves_no_node(tmp_path):
    write(
        tmp_path,
        test_long="""
        import time
        from pathlib import Path

        def test_long(rmqkit_cluster):
            Path("pids.new").write_text(" ".join(str(each.pid) for each in rmqkit_cluster.cluster.running().values()))
            Path("pids.new").rename("pids")
            time.sleep(600)
        """,
    )
    runner = subprocess.Popen(command(tmp_path), cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: (tmp_path / "pids").exists(), "the cluster is up")
        nodes = [psutil.Process(int(pid)) for pid in (tmp_path / "pids").read_text().split()]
        assert len(nodes) == 3
    finally:
        runner.send_signal(signal.SIGKILL)
        runner.wait()
    until(lambda: not any(node.is_running() for node in nodes), "the nodes have ended")


def until(reached, what: str) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not reached():
        assert time.monotonic() < deadline_s, f"not within {LIMIT_S} s: {what}"
        time.sleep(0.02)


ATTACHED = """
    import json
    import pytest
    from rmqkit import Message
    from rmqkit.errors import RmqkitError
    from rmqkit.testing import factories

    mine = factories.clean("rmqkit_running")

    def test_attached(mine):
        result = mine.producer().send(Message(mine.topic(), b"x"))
        assert result.queue_offset == 0
        assert mine.running.env["NAMESRV_ADDR"] == mine.namesrv
        with pytest.raises(RmqkitError, match="runs elsewhere"):
            mine.cluster
"""


@pytest.mark.parametrize("by", ["flag", "environment"])
def test_attached_to_a_running_cluster(tmp_path, rmqkit_cluster: RunningCluster, by):
    """The option has priority over the ini file, and the ini file over the environment."""
    here, nowhere = rmqkit_cluster.namesrv, "127.0.0.1:1"
    write(tmp_path, test_attached=ATTACHED, ini=f"rmqkit_namesrv = {nowhere}" if by == "flag" else "")
    words = ["--rmqkit-namesrv", here] if by == "flag" else []
    done = run(tmp_path, *words, NAMESRV_ADDR=here if by == "environment" else nowhere)
    assert outcomes(done) == {"test_attached": "PASSED"}, done.stdout
    assert len(rmqkit_cluster.cluster.running()) == 3, "the cluster must keep running"


def test_a_cluster_that_cannot_be_is_said_without_a_traceback(tmp_path):
    write(
        tmp_path,
        test_none="""
        from rmqkit.testing import factories

        silent = factories.running("127.0.0.1:1")
        no_address = factories.running("nowhere")
        misspelt = factories.cluster(groups=1, settings={"flushDiskTyp": "SYNC_FLUSH"})

        def test_unsaid(rmqkit_running): ...
        def test_silent(silent): ...
        def test_no_address(no_address): ...
        def test_misspelt(misspelt): ...
        def test_no_number(rmqkit_cluster): ...
        """,
    )
    done = run(tmp_path, "--rmqkit-groups", "none")
    tests = ("test_unsaid", "test_silent", "test_no_address", "test_misspelt", "test_no_number")
    assert outcomes(done) == dict.fromkeys(tests, "ERROR"), done.stdout
    for message in (
        "no cluster given: set --rmqkit-namesrv, rmqkit_namesrv in the ini file, or NAMESRV_ADDR",
        "rmqkit: no name server answers (127.0.0.1:1",
        "rmqkit: namesrv: 'nowhere' is not an address",
        "rmqkit: unknown setting 'flushDiskTyp'; did you mean flushDiskType?",
        "rmqkit_groups = none: must be a number above 0",
    ):
        assert message in done.stdout, done.stdout
    assert "During handling" not in done.stdout
    assert "Traceback" not in done.stdout
    assert "rmqkit/testing" not in done.stdout


def test_every_fixture_and_option_says_what_it_is(tmp_path):
    lines = run(tmp_path, "--fixtures").stdout.splitlines()
    for name in ("rmqkit_cluster", "rmqkit_clean", "rmqkit_running"):
        (place,) = [number for number, line in enumerate(lines) if line.startswith(name)]
        assert lines[place + 1].strip(), f"{name} has no description"
    helped = run(tmp_path, "--help").stdout
    for name in factories.OPTIONS:
        assert f"--{name.replace('_', '-')}=VALUE" in helped
        assert f"\n  {name} (string):" in helped
    assert "--rmqkit-set=KEY=VALUE" in helped
    assert f"\n  {factories.SETTINGS} (linelist):" in helped


def test_the_session_s_cluster_answers(rmqkit_clean):
    """The fixtures of this test session itself."""
    status = subprocess.run(
        [sys.executable, "-m", "rmqkit.cli.main", "cluster", "status", "pytest", "--json"],
        env=rmqkit_clean.running.env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert {node["state"] for node in json.loads(status.stdout)["nodes"]} == {"up"}
