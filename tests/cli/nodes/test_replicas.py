"""A group of several brokers as users see it: which replicas are in sync, why not, what to do."""

import socket
import tomllib

import pytest

from rmqkit.drill.real import transport
from tests.cli.conftest import free_base, make_shell, purge

SMALL = ("--set", "mappedFileSizeCommitLog=16777216")


@pytest.fixture(scope="module")
def pair(tmp_path_factory, lifeline):
    """A master and its slave, for tests that leave them running and in sync."""
    made = make_shell(tmp_path_factory.mktemp("pair") / "home", lifeline)
    made.run("cluster", "up", "--any-port", "--base-port", free_base(), *SMALL)
    yield made
    purge(made)


def brokers(shell):
    return shell.json("cluster", "status")["nodes"][1:]


def namesrv_of(shell):
    return shell.json("cluster", "status")["namesrv"]


def logs_are_equal(shell):
    files = [sorted((shell.home / "default" / "nodes" / f"broker-a-{n}" / "store" / "commitlog").iterdir()) for n in (0, 1)]
    assert [path.name for path in files[0]] == [path.name for path in files[1]]
    assert [path.read_bytes() for path in files[0]] == [path.read_bytes() for path in files[1]]


def test_a_cluster_that_is_up_replicates(pair):
    (sent,) = pair.lines("send", "kept", "x")
    assert sent["status"] == "SEND_OK"
    master, slave = brokers(pair)
    assert (master["in_sync"], slave["replication"]["state"]) == (2, "following")
    assert master["offset_max"] == slave["offset_max"] > 0
    logs_are_equal(pair)
    last = pair.run("cluster", "status").stdout
    assert "2/2" in last
    assert "yes" in last


def test_broker_ha_shows_what_mqadmin_asks_for(pair):
    told = pair.json("broker", "ha")
    assert list(told) == ["broker-a", "broker-a:1"]
    master, slave = told.values()
    assert (master["role"], master["slaves_in_sync"], len(master["slaves"])) == ("master", 1, 1)
    assert master["slaves"][0]["in_sync"] is True
    assert master["slaves"][0]["behind"] == 0
    assert (slave["role"], slave["log_end"]) == ("slave", master["log_end"])
    assert slave["master"] == brokers(pair)[0]["ha_address"]
    text = pair.run("broker", "ha", "broker-a").stdout
    assert "acknowledged" in text
    assert "# broker-a\n" in text


def test_both_are_explained(pair):
    assert "It follows its master and has all of its log." in pair.run("explain", "broker-a-1").stdout
    assert (
        "2 brokers are in sync, this one included; a put waits for 2 of them." in pair.run("explain", "broker-a-0").stdout
    )
    said = pair.json("explain", "broker-a-1")["node"]
    assert said["replication"] == {
        "state": "following",
        "in_sync": 0,
        "gap": 0,
        "says": [{"what": "It follows its master and has all of its log.", "do": ""}],
    }
    assert "every message" in {each["what"] for each in said["refuses"]}


def test_without_its_slave_a_master_goes_on_and_says_so(pair):
    pair.run("cluster", "kill", "slave")
    assert "broker-a-1 does not run" in pair.error("cluster", "wait", "--for", "in-sync", code=1)
    (sent,) = pair.lines("send", "kept", "alone")
    assert sent["status"] == "SEND_OK"
    master, slave = brokers(pair)
    assert (master["in_sync"], slave["state"], slave["in_sync"], slave["replication"]) == (1, "down", None, None)
    assert "1/2" in pair.run("cluster", "status").stdout
    assert pair.json("cluster", "start", "slave")["nodes"] == ["broker-a-1"]
    pair.run("cluster", "wait", "--for", "in-sync")
    logs_are_equal(pair)


@pytest.mark.long
def test_without_its_master_a_slave_acts_and_says_why_it_is_alone(pair):
    pair.run("send", "kept", "readable")
    pair.run("cluster", "kill", "master")
    assert pair.run("cluster", "wait", "--for", "acting").stdout == "cluster default has acting masters\n"
    master, slave = brokers(pair)
    ha_address = master["ha_address"]
    assert (master["acting"], slave["acting"], slave["standing"]["role"], slave["in_sync"]) == (False, True, "acting", None)
    text = pair.run("cluster", "status").stdout
    assert "SLAVE, acting" in text
    assert "broker-a-1  acts for the master of broker-a for " in text
    told = pair.run("explain", "broker-a-1").stdout
    assert f"It does not reach its master: no HA connection to {ha_address}" in told
    assert "listenPort + 1" in told
    assert "It acts for its master: " in told
    assert "broker-a-0, the master of broker-a, is down: this is broker-a-1" in pair.run("explain", "broker-a").stdout
    # As from another machine: this home does not contain the cluster.
    elsewhere = {**pair.environment, "RMQKIT_HOME": str(pair.home / "none"), "NAMESRV_ADDR": namesrv_of(pair)}
    told = pair.run("explain", "broker-a", env=elsewhere).stdout
    assert "the master of broker-a is not registered: this is broker-a:1" in told
    for words in (("explain", "broker-a-0"), ("config", "get", "broker-a", "brokerName")):
        refused = pair.run(*words, env=elsewhere, code=1).stderr
        assert "is not registered; of broker-a there are: broker-a:1" in refused
    late = pair.error("cluster", "wait", "--for", "master-back", "--timeout", "0.1", code=1)
    assert "a master is not back in time: broker-a-0 does not answer" in late
    # The slave starts without a master to follow.
    assert pair.json("cluster", "restart", "slave")["nodes"] == ["broker-a-1"]
    assert "no-master" in pair.run("cluster", "status").stdout
    assert "rmqkit cluster start" in pair.run("explain", "broker-a-1").stdout
    # The command ends when the running slave follows the master again.
    pair.run("cluster", "start", "master")
    assert pair.run("cluster", "wait", "--for", "master-back").stdout == "cluster default has its masters back\n"
    master, slave = brokers(pair)
    assert (master["in_sync"], slave["replication"]["state"]) == (2, "following")


@pytest.mark.parametrize("rules", [pytest.param([{}], marks=pytest.mark.long), [{"tag": "ha"}]], ids=["all", "ha"])
def test_a_node_that_a_killed_drill_has_left_cut_off_says_so_and_is_resumed(pair, rules):
    transport.isolate(pair.home / "default" / "nodes" / "broker-a-0", rules)
    assert "broker-a-0  isolated by a drill: `rmqkit cluster resume`" in pair.run("cluster", "status").stdout
    assert [broker["cut_off"] for broker in brokers(pair)] == [True, False]
    if rules == [{}]:
        assert "a drill has isolated it: `rmqkit cluster resume`" in pair.run("explain", "broker-a-0").stdout
    assert pair.run("cluster", "resume").stdout == "resumed: broker-a-0\n"
    pair.run("cluster", "wait", "--for", "in-sync")
    assert [broker["cut_off"] for broker in brokers(pair)] == [False, False]
    assert pair.run("cluster", "resume").stdout == "resumed: nothing to do\n"


@pytest.mark.long
def test_a_slave_that_is_ahead_stays_as_it_is_and_is_explained(pair):
    """The master has lost its last messages, as after a power cut."""
    pair.run("cluster", "stop", "master")
    store = pair.home / "default" / "nodes" / "broker-a-0" / "store"
    saved = {path: path.read_bytes() for path in sorted(store.rglob("*")) if path.is_file()}
    pair.run("cluster", "start", "master")
    pair.run("send", "kept", "only the slave will have this", "--count", "5")
    pair.run("cluster", "wait", "--for", "in-sync")
    pair.run("cluster", "kill", "master")
    for path in store.rglob("*"):
        if path.is_file():
            path.unlink()
    for path, content in saved.items():
        path.write_bytes(content)
    end = brokers(pair)[1]["offset_max"]
    noted = pair.run("cluster", "start", "master").stderr
    assert "broker-a-1 does not follow its master: ahead: " in noted
    _master, slave = brokers(pair)
    assert (slave["replication"]["state"], slave["offset_max"]) == ("ahead", end)
    assert "broker-a-1  ahead: " in pair.run("cluster", "status").stdout
    assert "haTruncateAhead=true" in pair.run("explain", "broker-a-1").stdout
    assert "broker-a-1 does not follow its master: ahead" in pair.error("cluster", "wait", code=1)
    file = pair.home / "default" / "nodes" / "broker-a-1" / "node.toml"
    file.write_text(file.read_text() + "haTruncateAhead = true\n")
    pair.run("cluster", "restart", "slave")
    pair.run("cluster", "wait", "--for", "in-sync")
    assert tomllib.loads(file.read_text())["haTruncateAhead"] is True
    (diverged,) = (file.parent / "store" / "diverged").iterdir()
    assert b"only the slave will have this" in diverged.read_bytes()
    logs_are_equal(pair)


@pytest.mark.long
def test_consume_ends_with_the_reason_when_nobody_may_be_read(shell):
    plain = [f"--set={key}" for key in ("slaveReadEnable=false", "enableSlaveActingMaster=false", "escapeStrategy=none")]
    shell.run("cluster", "up", "--any-port", "--base-port", free_base(), *plain, *SMALL)
    shell.run("send", "t", "x")
    shell.run("cluster", "kill", "master")
    for words in ([], ["--group", "g"], ["--follow"], ["--group", "g", "--follow"]):
        done = shell.run("consume", "t", "--timeout", "0.3", *words, code=3)
        last = done.stderr.splitlines()[-1]
        assert "could not be read for 0.3 s: " in last
        assert "slaveReadEnable is false on this slave; see `rmqkit explain broker-a`" in last
        assert done.stdout == ""


@pytest.mark.long
def test_too_few_in_sync_refuse_messages_and_say_so(shell):
    words = ("--any-port", "--base-port", free_base(), "--set", "enableAutoInSyncReplicas=false", *SMALL)
    shell.run("cluster", "up", *words)
    shell.run("send", "t", "x")
    shell.run("cluster", "kill", "slave")
    told = shell.error("send", "t", "x", "--timeout", "1", code=1)
    assert "in-sync replicas not enough" in told
    assert "it was not stored" in told
    assert "in-sync replicas not enough" in shell.run("cluster", "status").stdout
    assert "It refuses messages: waiting for 2 of 2 brokers." in shell.run("explain", "broker-a").stdout
    assert "Nothing was stored" in shell.run("explain", "in-sync replicas not enough").stdout
    # A refusal is a valid answer, so the master counts as up, and nothing else is awaited.
    shell.run("cluster", "restart", "master")
    shell.run("cluster", "start")
    (sent,) = shell.lines("send", "t", "x")
    assert sent["status"] == "SEND_OK"


def test_an_unknown_peer_on_the_ha_port_is_no_slave_in_sync(pair):
    host, port = brokers(pair)[0]["ha_address"].split(":")
    with socket.create_connection((host, int(port))) as stranger:
        stranger.sendall((0).to_bytes(8, "big"))
        stranger.settimeout(10)
        assert stranger.recv(12)
        master = brokers(pair)[0]
        assert master["in_sync"] == 2
        assert "haAcceptAnonymous" in pair.run("cluster", "status").stdout
    with socket.create_connection((host, int(port))) as stranger:
        stranger.sendall((1 << 60).to_bytes(8, "big"))
        stranger.settimeout(10)
        assert stranger.recv(12) == b""


@pytest.mark.long
def test_one_broker_is_a_cluster_too(shell):
    status = shell.json("cluster", "up", "--any-port", "--base-port", free_base(), "--replicas", "1", *SMALL)
    (_nameserver, broker) = status["nodes"]
    assert (broker["in_sync"], broker["replication"]["members"]) == (1, [])
    shell.run("cluster", "down")
    grown = shell.json("cluster", "up", "--replicas", "2")
    assert [node.get("in_sync") for node in grown["nodes"]] == [None, 2, None]
    assert shell.run("config", "get", "broker-a", "inSyncReplicas").stdout == "2\n"
