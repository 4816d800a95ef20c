"""`rmqkit fail-master` and `rmqkit drill`: output, exit codes, and the cluster afterwards."""

import json
import os

import pytest

from rmqkit.cli.drills import command, drill_output
from rmqkit.cli.errors import Unreachable
from rmqkit.cluster import Cluster
from rmqkit.cluster.errors import ClusterError
from rmqkit.drill import runs
from rmqkit.drill.defects.table import DEFECTS
from rmqkit.drill.plan import Plan, PlanError
from rmqkit.drill.real import runner
from tests.cli.conftest import free_base, make_shell
from tests.drill.hand import whole
from tests.drill.report.test_report import run_of


@pytest.mark.long
def test_fail_master_breaks_a_running_cluster_and_leaves_it_as_it_was(shell):
    shell.outside.run("cluster", "up", "--any-port", "--base-port", free_base())
    before = {node["node"]: node for node in shell.json("cluster", "status")["nodes"]}
    topics = shell.json("topic", "list")
    # The next drill removes the leftovers of a killed one.
    left = runs.new_run(shell.home / "default", Plan(seed=0))
    shell.run("topic", "create", f"drill-{left.name}")
    shell.run("group", "create", f"drill-{left.name}-pull")
    with runs.alone(shell.home / "default"):
        assert "another drill runs on cluster default" in shell.run("fail-master", code=4).stderr
    told = shell.run("fail-master", "broker-a", "--seed", 5, "--seconds", 1, "--json")
    verdict = json.loads(told.stdout)
    assert verdict["judgement"] == "valid", verdict
    assert verdict["node"] == "broker-a-0"
    assert "is gone" in verdict["proof"]
    assert verdict["plan"]["seed"] == 5
    assert verdict["plan"]["services"] == ["timers", "pop"], "these brokers check transactions after 36 s"
    assert [each["finding"]["judgement"] for each in verdict["promises"]] == ["valid"] * 15
    assert verdict["counts"]["acknowledged"] > 100
    assert "fault confirmed: the process of broker-a-0 is gone" in told.stderr
    after = {node["node"]: node for node in shell.json("cluster", "status")["nodes"]}
    assert {name: node["state"] for name, node in after.items()} == dict.fromkeys(before, "up")
    assert [name for name in before if before[name]["pid"] != after[name]["pid"]] == ["broker-a-0"]
    assert shell.json("topic", "list") == topics
    assert not [group for group in shell.run("group", "list").stdout.split() if group.startswith("drill-")]
    assert "has no verdict" in shell.error("drill", "show", left.name, code=2)
    shown = shell.run("drill", "show").stdout
    assert "Every promise was kept." in shown
    assert verdict["run"] in shell.run("drill", "list").stdout
    assert shell.json("drill", "show", verdict["run"]) == verdict


@pytest.fixture
def kept(tmp_path, lifeline):
    """A home without a cluster but with a drill run that broke a promise."""
    made = make_shell(tmp_path / "home", lifeline)
    run_of(whole().send("gone", 4, at_ms=2_700), made.home)
    return made


def test_a_broken_promise_is_shown_with_its_message_and_ends_with_1(kept):
    shown = kept.run("drill", "show", "last", code=1).stdout
    assert "1 of 13 promises broken: acknowledged-survive." in shown
    assert "gone: answered SEND_OK at 2705 ms, but is stored on no broker" in shown
    assert kept.json("drill", "show", code=1)["judgement"] == "broken"


@pytest.mark.long
def test_a_report_is_written_where_it_is_wanted(kept, tmp_path):
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    kept.run("drill", "show", "--report", tmp_path / "r.html", code=1)
    assert "<svg" in (tmp_path / "r.html").read_text()
    assert "its folder does not exist" in kept.error("drill", "show", "--report", tmp_path / "no" / "r.html", code=2)


def test_list_names_all_that_a_drill_may_have(kept):
    told = kept.json("drill", "list")
    assert {"kill", "pause", "isolate"} <= set(told["faults"])
    assert {"acknowledged-survive", "timer-kept", "transaction-atomic", "pop-kept"} <= set(told["promises"])
    assert list(told["loads"]) == ["timers", "transactions", "pop", "none"]
    assert "quorum+pool" in told["modes"]
    assert told["defects"]
    assert [each["run"] for each in told["runs"]] == [run.name for run in runs.all_runs(kept.home)]


def test_list_says_which_command_finds_a_defect(kept):
    lines = {line.split()[0]: line for line in kept.run("drill", "list").stdout.splitlines() if line}
    assert lines["lost-queue-tail"].endswith("  rmqkit drill run --break lost-queue-tail")
    assert lines["slave-differs"].endswith("  rmqkit drill run --break slave-differs --fault pause")
    assert lines["slow-ack"].endswith("--fault pause --target slave --seconds 10 --send-timeout 15")
    assert lines["ack-before-sync"].endswith("  rmqkit drill simulate --break ack-before-sync")
    assert "in the page cache, on the master" in lines["async+async-flush"]
    for name, found_by in ((name, lines[name].partition("rmqkit ")[2]) for name in DEFECTS):
        kept.run(*found_by.split(), "--help")
        plan = Plan(**{"replicas": 2, **(DEFECTS[name].plan or {})})
        assert bool(drill_output.may_miss(name, plan)) is (DEFECTS[name].plan is None)
    told = drill_output.may_miss("slave-differs", Plan(replicas=2))
    assert "may not find the defect slave-differs. It needs a connection that stays open" in told
    assert told.endswith("`rmqkit drill run --break slave-differs --fault pause` finds it.")


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (["fail-master"], 3, "no cluster default is running here"),
        (["fail-master", "--cluster", "other"], 3, "rmqkit cluster up other"),
        (["drill", "run", "--fault", "kil"], 2, "there is no fault kil; there are kill"),
        (["drill", "run", "--fault", "kill-leader"], 2, "the fault kill-leader needs a cluster with controllers"),
        (["drill", "run", "--mode", "raft"], 2, "use one of async, sync, quorum"),
        (["drill", "run", "--break", "nothing"], 2, "there is no defect nothing"),
        (
            ["drill", "run", "--load", "timers,pops"],
            2,
            "there is no load pops; there are timers, transactions, pop, or none",
        ),
        (["drill", "run", "--load", "pop,none"], 2, "none cannot be combined with a load"),
        (["drill", "run", "--load", ","], 2, "--load is empty"),
        (["drill", "run", "--set", "slaveTimeut=1"], 2, "did you mean slaveTimeout"),
        (["drill", "run", "--target", "broker-a:2"], 2, "no node matches 'broker-a:2'"),
        (["drill", "run", "--target", "ns"], 2, "drills break brokers; there are broker-a-0, broker-a-1"),
        (["drill", "compare", "--set", "", "--set", "slaveTimeout=1", "--target", "slav"], 2, "did you mean slave?"),
        (["drill", "show", "yesterday"], 2, "there is no run 'yesterday'"),
        (["drill", "replay", "yesterday"], 2, "there is no run 'yesterday'"),
        (["drill", "compare", "--set", "slaveTimeout=1"], 2, "needs two sides"),
        (["drill", "compare", "--set", "", "--set", "lockMode=strict", "--runs", "0"], 2, "--runs"),
        (["drill", "run", "--preset", "fast"], 2, "fast-failover"),
        (["drill", "run", "--preset", "crosswise"], 2, "one broker a process"),
        (["drill", "simulate", "--mode", "raft"], 2, "use one of async, sync, quorum"),
        (["drill", "simulate", "--break", "nothing"], 2, "there is no defect nothing"),
    ],
)
def test_invalid_arguments_are_an_error_of_one_line(kept, words, code, error):
    done = kept.run(*words, code=code)
    assert error in done.stderr.splitlines()[-1]


def test_a_home_that_cannot_be_written_is_noticed_before_the_start(tmp_path):
    (tmp_path / "home").touch()
    told = []
    with pytest.raises(ClusterError, match=r"cannot use .*home/drills: .*; set RMQKIT_HOME to a writable folder"):
        runner.with_own_cluster(Plan(replicas=2), tmp_path / "home", told.append)
    assert told == []


@pytest.mark.parametrize("fault", ["kill-leader", "isolate-controllers"])
def test_a_fault_of_controllers_breaks_nothing_where_there_are_none(tmp_path, fault):
    with pytest.raises(PlanError, match="needs a cluster with controllers: `rmqkit cluster up --preset controller`"):
        runner.on_cluster(Cluster("absent", home=tmp_path), Plan(fault=fault), tmp_path, print)


def test_simulated_drills_with_tls_need_the_library(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ClusterError, match=r"pip install 'rmqkit\[secure\]'"):
        command.simulate(secure=True)


def test_simulated_drills_print_their_verdict_and_find_a_defect(kept):
    assert "1 seed: 1 valid" in kept.run("drill", "simulate", "--from", "2", "--seeds", "1").stdout
    found = kept.json("drill", "simulate", "--break", "skip-delivery", "--seeds", "1")
    assert "everything-delivered" in found["found"]["broken"]
    missed = kept.run("drill", "simulate", "--break", "no-comeback", "--from", "2", "--seeds", "1", code=1).stdout
    assert "no-comeback was not found in 1 seeds" in missed


def test_fail_master_takes_the_only_cluster_that_runs(monkeypatch):
    asked = []

    class Asked:
        is_running = False

        def __init__(self, name):
            asked.append(name)

    monkeypatch.setattr("rmqkit.cluster.Cluster", Asked)
    monkeypatch.setattr("rmqkit.cluster.meant_cluster", lambda *, changes: "mine" if changes else "other")
    with pytest.raises(Unreachable, match="rmqkit cluster up mine"):
        command.fail_master()
    assert asked == ["mine"]


@pytest.mark.long
def test_a_drill_on_a_secure_cluster_keeps_every_promise(tmp_path, lifeline):
    shell = make_shell(tmp_path / "home", lifeline)
    told = json.loads(shell.run("drill", "run", "--preset", "secure", "--seconds", 2, "--json").stdout)
    assert told["judgement"] == "valid"
    assert told["plan"]["secure"] is True
    assert not any(name in os.environ for name in ("RMQKIT_ACCESS_FILE", "RMQKIT_TLS"))
