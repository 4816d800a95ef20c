"""Whole clusters as processes: up, down, and what may happen in between."""

import json
import os
import signal
import socket
import subprocess
import urllib.parse
import urllib.request

import psutil
import pytest

from rmqkit.cluster import ClusterError, launch, processes
from rmqkit.cluster.layout import ports
from tests.cli.conftest import free_base, make_shell, purge

#: small log files, which are recovered quickly after a crash
SMALL = ("--set", "mappedFileSizeCommitLog=16777216")
#: one broker per group, for tests that need no replicas
ALONE = ("--replicas", "1")
#: an unreachable address: a cluster that advertises it never becomes ready
NOWHERE = ("--bind", "0.0.0.0", "--advertise", "192.0.2.1", "--insecure")


def states(shell, name="default"):
    return {node["node"]: node["state"] for node in shell.json("cluster", "status", name)["nodes"]}


def no_process_is_left(shell):
    return processes.strays(shell.home) == []


def test_status_has_the_shape_that_scripts_depend_on(up):
    status = up.json("cluster", "status")
    assert list(status) == ["name", "namesrv", "home", "nodes"]
    nameserver, broker, slave = status["nodes"]
    assert nameserver["acting_supported"] is True
    assert list(nameserver) == ["node", "kind", "address", "metrics", "pid", "state", "acting_supported", "cut_off"]
    assert (nameserver["node"], nameserver["kind"], nameserver["state"]) == ("ns-0", "nameserver", "up")
    assert nameserver["address"] == status["namesrv"]
    assert list(broker) == list(slave) == [
        "node", "kind", "broker_name", "broker_id", "role", "acting", "address", "ha_address", "metrics", "pid",
        "container", "state", "store", "offset_max", "in_sync", "replication", "acting_enabled", "standing", "election",
        "cut_off",
    ]  # fmt: skip
    for node, broker_id, role, state, in_sync in (
        (broker, 0, "SYNC_MASTER", "serving", 2),
        (slave, 1, "SLAVE", "following", None),
    ):
        host, port = node["address"].split(":")
        assert node["ha_address"] == f"{host}:{int(port) + 1}"
        assert (node["broker_name"], node["broker_id"], node["role"], node["acting"]) == (
            "broker-a",
            broker_id,
            role,
            False,
        )
        assert (node["state"], node["in_sync"], node["offset_max"] > 0) == ("up", in_sync, True)
        assert list(node["replication"]) == ["state", "why", "gap", "wanted", "members"]
        assert (node["replication"]["state"], node["replication"]["why"]) == (state, "")
        assert list(node["standing"]) == ["role", "online", "since_ms", "why", "stage", "members", "head"]
        assert (node["standing"]["role"], node["standing"]["online"]) == ("slave" if broker_id else "master", "online")
        assert os.path.isdir(node["store"])
    (member,) = broker["replication"]["members"]
    assert (member["broker_id"], member["address"], member["in_sync"]) == (1, slave["address"], True)
    for node in status["nodes"]:
        assert psutil.pid_exists(node["pid"])
    assert [node["metrics"] for node in status["nodes"]] == [None, None, None]
    assert status["home"] == str(up.home / "default")


def test_a_running_cluster_is_up_already(up):
    before = up.json("cluster", "status")
    assert "cluster default is up already" in up.run("cluster", "up").stdout
    again = up.json("cluster", "up", "--any-port")
    assert [node["pid"] for node in again["nodes"]] == [node["pid"] for node in before["nodes"]]


def test_another_shape_of_a_running_cluster_is_refused_with_what_to_do(up):
    told = up.error("cluster", "up", "--groups", "2", code=1)
    assert "groups = 1" in told
    assert "rmqkit cluster down" in told


def test_list_env_logs_and_wait(up):
    status = up.json("cluster", "status")
    assert [(each["name"], each["state"], each["running"]) for each in up.json("cluster", "list")] == [("default", "up", 3)]
    assert up.run("cluster", "env").stdout == f"export NAMESRV_ADDR='{status['namesrv']}'\n"
    assert up.json("cluster", "env") == {"NAMESRV_ADDR": status["namesrv"]}
    assert "ready" in up.run("cluster", "logs", "ns-0").stdout
    assert "\nbroker-a-0: " in up.run("cluster", "logs").stdout
    assert {line["node"] for line in up.lines("cluster", "logs")} == {"ns-0", "broker-a-0", "broker-a-1"}
    assert up.run("cluster", "wait", "--for", "ready").stdout == "cluster default is ready\n"
    assert up.run("cluster", "wait", "--for", "in-sync").stdout == "cluster default is in sync\n"
    assert "ready, in-sync" in up.error("cluster", "wait", "--for", "lunch", code=2)
    up.error("cluster", "logs", "broker-b", code=2)


@pytest.fixture(scope="module")
def own(tmp_path_factory, lifeline):
    """A cluster of two groups, for tests that leave it running."""
    made = make_shell(tmp_path_factory.mktemp("own") / "home", lifeline)
    made.run("cluster", "up", "--any-port", "--base-port", free_base(), "--groups", "2", *ALONE, *SMALL)
    yield made
    purge(made)


@pytest.mark.long
def test_killed_nodes_are_started_again_by_up(own):
    assert own.run("cluster", "kill", "master").stdout == "killed: broker-a-0, broker-b-0\n"
    assert states(own) == {"ns-0": "up", "broker-a-0": "down", "broker-b-0": "down"}
    assert own.run("cluster", "kill", "master").stdout == "killed: nothing to do\n"
    assert "does not run" in own.error("cluster", "wait", code=1)
    assert own.json("cluster", "start", "broker-a") == {"name": "default", "action": "started", "nodes": ["broker-a-0"]}
    assert states(own) == {"ns-0": "up", "broker-a-0": "up", "broker-b-0": "down"}
    assert "cluster default is up\n" in own.run("cluster", "up").stdout
    assert set(states(own).values()) == {"up"}


@pytest.mark.long
def test_without_brokers_nothing_is_said_to_be_missing(own):
    (sent,) = own.lines("send", "kept", "x")
    own.run("cluster", "kill", "master")
    # On a busy machine the name server notices the lost connections a moment later.
    wait_for(lambda: "no broker is registered" in own.run("topic", "list", code=None).stderr)
    for words in (
        "topic list", "topic info kept", "topic create other", "group list", "group progress", "group info g", "stats all",
        "broker status", "config get flushDiskType", "consume kept", "bench send --count 1", "offset show g kept",
        f"message show {sent['msg_id']}", f"message show {sent['offset_msg_id']} --topic kept",
    ):  # fmt: skip
        assert "no broker is registered" in own.error(*words.split(), code=3)
    assert "start a broker that has it" in own.error("send", "kept", "x", code=1)
    own.run("cluster", "start")
    assert own.json("message", "show", sent["msg_id"])["body"] == "x"
    assert own.json("message", "show", sent["offset_msg_id"])["body"] == "x"


def test_a_node_that_died_by_itself_differs_from_one_that_was_stopped(own):
    crash(own.json("cluster", "status")["nodes"][1:2])
    own.run("cluster", "stop", "broker-b:0")
    assert states(own) == {"ns-0": "up", "broker-a-0": "died", "broker-b-0": "down"}
    own.run("cluster", "up")


def test_a_setting_that_did_not_reach_every_broker_is_reported(own):
    own.run("cluster", "stop", "broker-b")
    try:
        done = own.run("config", "set", "traceOn=false", code=1)
        assert done.stdout == "broker-a: changed traceOn\n"
        assert "broker-b: not changed: broker-b-0 is not registered" in done.stderr
        assert done.stderr.endswith("error: not changed at broker-b\n")
        said = json.loads(own.run("config", "set", "traceOn=true", "--json", code=1).stdout)
        assert (said["nodes"], list(said["failed"])) == (["broker-a"], ["broker-b"])
    finally:
        own.run("cluster", "start")


def test_without_a_name_server_commands_say_how_to_start_it(own):
    own.run("cluster", "stop", "ns")
    try:
        for words in ("send t x", "topic list", "config get brokerName"):
            told = own.error(*words.split(), code=3)
            assert "no name server of cluster default runs (ns-0)" in told
            assert told.endswith("`rmqkit cluster start default`")
        for name in ("ns-0", "nameserver", "ns"):
            assert "it is down: `rmqkit cluster start`" in own.run("explain", name).stdout
    finally:
        own.run("cluster", "start")
        own.run("cluster", "wait")


def test_names_that_are_nearly_right(own):
    assert "did you mean default? Or start one with `rmqkit cluster up defalt`" in own.error(
        "cluster", "status", "defalt", code=3
    )
    assert "did you mean broker-a?" in own.error("explain", "brokera", code=2)
    assert "ns-1 is no broker; the name servers of cluster default are ns-0" in own.error("config", "list", "ns-1", code=2)
    assert "rmqkit cluster up --container" in own.error("container", "list", "--at", "127.0.0.1:1", code=3)


def test_a_restart_on_a_full_disk_stops_nothing(own, monkeypatch):
    def full(folder, state):
        raise ClusterError("cannot write state.json: No space left on device")

    before = own.json("cluster", "status")["nodes"]
    with monkeypatch.context() as patched:
        patched.setattr("rmqkit.cluster.layout.state.save", full)
        assert "No space left" in own.error("cluster", "restart", code=1)
    assert [node["pid"] for node in own.json("cluster", "status")["nodes"]] == [node["pid"] for node in before]


def test_a_paused_node_stays_and_says_nothing(own):
    assert own.run("cluster", "pause", "broker-a-0").stdout == "paused: broker-a-0\n"
    assert states(own)["broker-a-0"] == "paused"
    told = own.error("cluster", "wait", "--timeout", 0.5, code=1)
    assert "broker-a-0 is paused; resume with `rmqkit cluster resume`" in told
    assert own.run("cluster", "resume").stdout == "resumed: broker-a-0\n"
    assert set(states(own).values()) == {"up"}


def test_a_send_without_an_answer_is_unknown_and_not_lost(own):
    own.run("cluster", "pause", "master")
    try:
        told = own.error("send", "broker-a", "x", "--timeout", "0.5", code=1)
        assert "unknown, it may have been stored" in told
        lines = own.run("send", "broker-a", "--count", "2", "--timeout", "0.5", "--json", code=1).stdout.splitlines()
        assert [json.loads(line)["status"] for line in lines] == ["UNKNOWN", "UNKNOWN"]
    finally:
        own.run("cluster", "resume")


def test_nodes_are_found_again_when_their_state_is_lost(own):
    path = own.home / "default" / "state.json"
    before = path.read_text()
    for text in ("{", None):
        if text is None:
            path.unlink()
        else:
            path.write_text(text)
        assert set(states(own).values()) == {"up"}
        assert "up already" in own.run("cluster", "up").stdout
    path.write_text(before)


def test_an_unknown_cluster_or_node_is_answered_with_the_closest_name(own):
    assert "did you mean master?" in own.error("cluster", "kill", "mastr", code=2)
    assert "did you mean broker-b-0?" in own.error("cluster", "kill", "default", "broker-b-1", code=2)


def test_a_broken_description_is_named_and_hides_no_other_cluster(own):
    broken = own.home / "broken"
    broken.mkdir()
    (broken / "cluster.toml").write_text("groups = 'x'")
    try:
        done = own.run("cluster", "list")
        assert "default" in done.stdout
        assert "broken/cluster.toml: groups must be a whole number" in done.stderr
        assert "groups must be a whole number" in own.error("cluster", "status", "broken", code=2)
    finally:
        (broken / "cluster.toml").unlink()
        broken.rmdir()


def test_restart_gives_new_processes_at_the_same_addresses(own):
    before = own.json("cluster", "status")["nodes"]
    assert own.json("cluster", "restart", "ns,broker-b")["nodes"] == ["ns-0", "broker-b-0"]
    after = own.json("cluster", "status")["nodes"]
    assert [node["address"] for node in after] == [node["address"] for node in before]
    assert [node["pid"] == old["pid"] for node, old in zip(after, before, strict=True)] == [False, True, False]
    assert {node["state"] for node in after} == {"up"}


def test_a_pid_of_another_process_is_not_taken_for_a_node(own):
    path = own.home / "default" / "state.json"
    before = path.read_text()
    content = json.loads(before)
    content["nodes"]["broker-a-0"]["pid"] = os.getpid()
    path.write_text(json.dumps(content))
    assert states(own)["broker-a-0"] == "died"
    assert own.run("cluster", "kill", "broker-a-0").stdout == "killed: nothing to do\n"
    path.write_text(before)
    assert set(states(own).values()) == {"up"}


@pytest.mark.long
def test_a_restart_stops_nothing_if_a_node_would_not_start_again(own):
    file = own.home / "default" / "nodes" / "broker-b-0" / "node.toml"
    before, pids = file.read_text(), [node["pid"] for node in own.json("cluster", "status")["nodes"]]
    port = int(own.json("cluster", "status")["nodes"][2]["address"].split(":")[1])
    try:
        for line, words, says in (
            ('plugins = "rmqkit-away"', (), "plugins=rmqkit-away: no plug-in of that name"),
            ("fileReservedTime = -7", ("broker-b", "--rolling"), f"fileReservedTime = -7 in {file} line "),
        ):
            file.write_text(f"{line}\n{before}")
            told = own.error("cluster", "restart", *words, code=1)
            assert told.startswith("error: nothing was stopped; broker-b-0 would not start again: ")
            assert says in told
        with socket.create_server(("127.0.0.1", 0)) as taken:
            other = taken.getsockname()[1]
            file.write_text(before.replace(f"listenPort = {port}", f"listenPort = {other}"))
            description = own.home / "default" / "cluster.toml"
            description.write_text(description.read_text().replace("any_port = true", "any_port = false"))
            assert f"port {other}, which broker-b-0 needs, is taken" in own.error("cluster", "restart", code=1)
            description.write_text(description.read_text().replace("any_port = false", "any_port = true"))
    finally:
        file.write_text(before)
    assert [node["pid"] for node in own.json("cluster", "status")["nodes"]] == pids
    assert own.json("cluster", "restart", "broker-b")["nodes"] == ["broker-b-0"]


@pytest.mark.long
def test_two_ups_at_once_make_one_cluster(shell):
    words = ("cluster", "up", "--any-port", "--base-port", free_base(), *ALONE, "--json")
    with shell.start(*words, stdout=subprocess.PIPE) as one, shell.start(*words, stdout=subprocess.PIPE) as other:
        pids = [[node["pid"] for node in json.load(each.stdout)["nodes"]] for each in (one, other)]
        assert (one.wait(), other.wait()) == (0, 0)
    assert pids[0] == pids[1]


@pytest.mark.long
def test_metrics_have_a_port_of_their_own_on_every_node(shell):
    """Metrics ports are at least 10 apart, survive a restart, and move if taken.

    `cluster up` prints them, and `--json` contains them.
    """
    base = str(free_base())
    own = ("--base-port", base, "--any-port", *ALONE, "--log-format", "json")
    metrics = ("--set", "metricsExporterType=PROM", "--set", f"metricsPromExporterPort={int(base) + 105}")
    with socket.create_server(("127.0.0.1", int(base) + 105)):
        status = shell.json("cluster", "up", *own, *metrics)
    urls = [node["metrics"] for node in status["nodes"]]
    ports = [urllib.parse.urlsplit(url).port for url in urls]
    assert ports[0] >= int(base) + 115
    assert ports[1] >= ports[0] + 10
    for url, name in zip(urls, ("rmqkit_brokers", "rocketmq_messages_in_total"), strict=True):
        with urllib.request.urlopen(url, timeout=10) as answer:
            assert f"\n{name}{{".encode() in answer.read()
    assert urls[0] in shell.run("cluster", "up").stdout
    shell.run("cluster", "restart")
    assert [node["metrics"] for node in shell.json("cluster", "status")["nodes"]] == urls
    for line in shell.lines("cluster", "logs"):
        assert list(json.loads(line["line"])) == ["ts", "level", "node", "event", "fields"]
    shell.error("cluster", "up", "other", "--log-format", "xml", code=2)


@pytest.mark.long
def test_down_keeps_the_data_and_purge_removes_it(shell):
    shell.outside.run("cluster", "up", "shop", "--any-port", "--base-port", free_base())
    namesrv = shell.json("cluster", "status", "shop")["namesrv"]
    the_only_cluster_needs_no_name(shell)
    assert "its data stays in" in shell.outside.run("cluster", "down", "shop").stdout
    assert set(states(shell, "shop").values()) == {"down"}
    assert shell.json("cluster", "status")["name"] == "shop"
    assert no_process_is_left(shell)
    assert shell.json("cluster", "down", "shop")["stopped"] == []
    again = shell.json("cluster", "up", "shop")
    assert again["namesrv"] == namesrv
    assert shell.run("consume", "t", "--namesrv", namesrv).stdout == "kept\nkept\n"
    (shell.home / "shop" / "mine.txt").write_text("not of the cluster")
    assert shell.json("cluster", "down", "shop", "--purge") == {
        "name": "shop",
        "stopped": ["ns-0", "broker-a-0", "broker-a-1"],
        "purged": True,
    }
    assert [path.name for path in (shell.home / "shop").iterdir()] == ["mine.txt"]
    assert no_process_is_left(shell)
    shell.error("cluster", "status", "shop", code=3)


def the_only_cluster_needs_no_name(shell):
    """Check commands without a cluster name while `shop` is the only cluster, and up."""
    assert shell.run("send", "t", "kept").stdout.startswith("SEND_OK")
    for words in ([], ["shop"], ["--cluster", "shop"], ["shop", "--cluster", "shop"]):
        assert shell.json("cluster", "status", *words)["name"] == "shop"
        assert "NAMESRV_ADDR" in shell.run("cluster", "env", *words).stdout
    assert shell.run("cluster", "wait").stdout == "cluster shop is ready\n"
    assert "different clusters" in shell.error("cluster", "status", "shop", "--cluster", "default", code=2)
    for words in (["broker-a-1"], ["shop", "broker-a-1"], ["--cluster", "shop", "broker-a-1"], ["broker-a:1"]):
        assert "ready" in shell.run("cluster", "logs", *words).stdout
    assert "did you mean broker-a-1?" in shell.error("cluster", "kill", "--cluster", "shop", "broker-a-2", code=2)
    # Every command accepts the same names for a node.
    for name in ("broker-a-1", "broker-a:1"):
        assert shell.run("config", "get", name, "brokerRole").stdout == "SLAVE\n"
        assert list(shell.json("broker", "status", name)) == ["broker-a:1"]
        assert shell.json("explain", name)["node"]["role"] == "SLAVE"
    assert "is a slave" in shell.error("broker", "wipe-write-perm", "broker-a-1", code=1)
    assert shell.json("broker", "add-write-perm", "broker-a-0")["broker_name"] == "broker-a"
    assert shell.json("topic", "perm", "t", "--broker", "broker-a-0")["brokers"][0]["broker_name"] == "broker-a"
    assert shell.run("send", "t", "kept", "--queue", "broker-a-0:1").stdout.startswith("SEND_OK: t broker-a:1")
    for name in ("ns", "ns-0", "nameserver"):
        assert shell.run("config", "get", name, "supportActingMaster").stdout == "true\n"
        assert shell.json("explain", name)["node"]["kind"] == "nameserver"
        assert "ready" in shell.run("cluster", "logs", name).stdout
    # A purge needs the cluster's name, because it deletes data.
    assert "there are shop" in shell.error("cluster", "down", "--purge", code=3)


@pytest.mark.long
def test_settings_reach_the_nodes_and_are_remembered(shell):
    shell.run("cluster", "up", "--any-port", "--base-port", free_base(), *ALONE, "--set", "flushDiskType=SYNC_FLUSH")
    assert shell.run("config", "get", "flushDiskType").stdout == "SYNC_FLUSH\n"
    shell.run("cluster", "down")
    shell.run("cluster", "up", "--set", "fileReservedTime=5")
    assert shell.json("config", "get", "flushDiskType")["nodes"] == {"broker-a": "SYNC_FLUSH"}
    assert shell.json("config", "get", "fileReservedTime")["nodes"] == {"broker-a": "5"}


def test_a_taken_port_is_an_error_that_names_the_owner(shell):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        told = shell.error("cluster", "up", "--base-port", port, code=1)
        assert f"port {port}, which ns-0 needs, is taken by pid {os.getpid()}" in told
        assert "--any-port" in told
        assert list(shell.home.iterdir()) == []


@pytest.mark.long
def test_any_port_moves_on(shell, monkeypatch):
    with socket.create_server(("127.0.0.1", free_base())) as listener:
        port = listener.getsockname()[1]
        status = shell.json("cluster", "up", "--any-port", "--base-port", port, *ALONE)
        assert int(status["namesrv"].split(":")[1]) >= port + 10
    shell.run("cluster", "stop", "master")
    before = int(status["nodes"][1]["address"].split(":")[1])
    monkeypatch.setattr("rmqkit.cluster.layout.ports.OWN_PORT_WAIT_S", 0.0)
    with socket.create_server(("127.0.0.1", before + 1)):
        noted = shell.run("cluster", "start").stderr
    assert f"broker-a-0 moves to port {before + 10}: one of its ports at {before} is taken" in noted


@pytest.mark.long
def test_a_port_that_was_taken_for_a_moment_is_tried_again(shell, monkeypatch):
    base = free_base()
    look, holder = launch._port_was_taken, socket.socket()

    def freed_before_the_look(*given):
        holder.close()
        return look(*given)

    def free_at_first_sight(host, port):
        return port == base or is_free(host, port)

    is_free = ports.is_free
    monkeypatch.setattr(launch, "_port_was_taken", freed_before_the_look)
    monkeypatch.setattr(ports.choose, "__kwdefaults__", {**ports.choose.__kwdefaults__, "free": free_at_first_sight})
    with holder:
        holder.bind(("127.0.0.1", base))
        done = shell.run("cluster", "up", "--any-port", "--base-port", base, *ALONE, "--json")
    assert "a port of ns-0 was taken meanwhile" in done.stderr
    assert json.loads(done.stdout)["namesrv"].endswith(f":{base}")


def test_ctrl_c_during_up_leaves_nothing_behind(shell):
    with shell.terminal("cluster", "up", "--any-port", "--base-port", free_base(), *ALONE, *NOWHERE) as screen:
        wait_for(lambda: (shell.home / "default" / "nodes" / "broker-a-0" / "log").exists())
        screen.process.sendintr()
        screen.expect("interrupted")
        assert screen.process.wait() == 130
    assert no_process_is_left(shell)
    assert list(shell.home.iterdir()) == []


@pytest.mark.long
def test_a_terminated_up_of_an_old_cluster_leaves_it_as_it_was(shell):
    shell.run("cluster", "up", "--any-port", "--base-port", free_base(), *ALONE)
    shell.run("cluster", "down")
    folder = shell.home / "default"
    before = {name: (folder / name).read_text() for name in ("cluster.toml", "state.json")}
    log = folder / "nodes" / "broker-a-0" / "log"
    size = log.stat().st_size
    with shell.start("cluster", "up", *NOWHERE) as process:
        wait_for(lambda: log.stat().st_size > size)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 143
    assert no_process_is_left(shell)
    assert {name: (folder / name).read_text() for name in before} == before


def test_a_node_that_ends_at_once_is_reported_with_its_last_log_lines(shell):
    done = shell.run(
        "cluster", "up", "--any-port", "--base-port", free_base(), *ALONE, "--set", "storageEngine=maped", code=1
    )
    first, *last = done.stderr.splitlines()
    assert first.startswith("error: broker-a-0 ended during its start; see its log ")
    assert any("storageEngine=maped" in line and "mapped" in line for line in last)
    assert no_process_is_left(shell)
    assert shell.json("cluster", "list") == []


def test_a_cluster_that_does_not_answer_in_time_is_taken_back(shell):
    told = shell.run(
        "cluster", "up", "--any-port", "--base-port", free_base(), *ALONE, *NOWHERE, "--timeout", "0.5", code=1
    )
    assert "is not ready in time" in told.stderr
    assert no_process_is_left(shell)


@pytest.mark.long
def test_everything_that_was_killed_behind_its_back_comes_up_again(shell):
    status = shell.json("cluster", "up", "--any-port", "--base-port", free_base(), *ALONE, *SMALL)
    crash(status["nodes"])
    assert "ns-0, broker-a-0 should run but does not" in shell.run("doctor", "--no-spark", code=None).stdout
    assert {node["state"] for node in shell.json("cluster", "up")["nodes"]} == {"up"}


def test_a_description_from_a_file(shell):
    (shell.home / "f.toml").write_text(
        f"name = 'other'\nbase_port = {free_base()}\nany_port = true\nnameservers = 2\nreplicas = 1\n"
    )
    status = shell.json("cluster", "up", "--file", "f.toml")
    assert (status["name"], [node["node"] for node in status["nodes"]]) == ("other", ["ns-0", "ns-1", "broker-a-0"])
    assert len(status["namesrv"].split(";")) == 2
    shell.run("cluster", "stop", "other", "ns-0")
    shell.run("send", "t", "x", "--namesrv", status["namesrv"])
    with open(shell.home / "other" / "cluster.toml", "a") as description:
        description.write("replicas = \n")
    assert "other/cluster.toml: Invalid value" in shell.error("cluster", "status", "other", code=2)
    down = shell.run("cluster", "down", "other", "--json")
    assert "the nodes that were started are stopped" in down.stderr
    assert sorted(json.loads(down.stdout)["stopped"]) == ["broker-a-0", "ns-1"]
    assert no_process_is_left(shell)


def crash(nodes):
    """Kill processes behind rmqkit's back."""
    victims = [psutil.Process(node["pid"]) for node in nodes if node["state"] == "up"]
    assert len(victims) == len(nodes)
    for victim in victims:
        victim.kill()
    psutil.wait_procs(victims, 10)


def wait_for(condition, seconds=20.0):
    import time

    until_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.02)
