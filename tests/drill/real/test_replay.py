"""A replay has the plan and the node settings of the recorded drill. No cluster is started."""

from itertools import product
from pathlib import Path

import pytest

from rmqkit import config
from rmqkit.cluster.layout import nodefile
from rmqkit.cluster.layout.description import Description
from rmqkit.cluster.layout.presets import with_preset
from rmqkit.drill import runs
from rmqkit.drill.defects.table import DEFECTS
from rmqkit.drill.plan import SEEN, Mode, Plan
from rmqkit.drill.promises.table import TABLE
from rmqkit.drill.real.driver import plan_as_recorded
from rmqkit.drill.real.runner import plan_for, shape_of
from rmqkit.settings.table import show
from tools.drills import series

#: the plans of `make drills`, one for each that differs in more than its seed
SERIES = {
    f"{plan.fault} {plan.target} {plan.mode} {plan.replicas} {' '.join(plan.settings.values())}": plan
    for each in series.LISTS.values()
    for plan in each.plans()
}
MODES = {
    f"{replication}+{flush}, {replicas}": Plan(mode=Mode(replication, flush), replicas=replicas)
    for (replication, flush), replicas in product(TABLE, (1, 2, 3))
}
BROKEN = {
    f"--break {name}": Plan(**{"replicas": 2, "mode": Mode(), **(each.plan or {})}, settings=each.settings, breaks=(name,))
    for name, each in DEFECTS.items()
}
SET = {
    f"--set {key}={value}": Plan(replicas=3, groups=2, fault="pause", fault_ms=0, settings={key: value})
    for key, value in (
        ("lockMode", "strict"),
        ("lockInStrictMode", "true"),
        ("lockInStrictMode", "false"),
        ("escapeStrategy", "none"),
        ("escapeStrategy", "spool"),
        ("enableRemoteEscape", "true"),
        ("enableRemoteEscape", "false"),
        ("messageDelayLevel", "1s 2s 3s"),
        ("scanNotActiveBrokerInterval", "500"),
    )
}
PLANS = SERIES | MODES | BROKEN | SET

CLUSTERS = {
    "cluster up": {},
    "one broker": {"replicas": 1},
    "fast failover": with_preset("fast-failover", {"groups": 2, "replicas": 3, "settings": {}}),
    "crosswise": with_preset("crosswise", {"settings": {}}),
    "three name servers": {"nameservers": 3},
    "controllers": with_preset("controller", {"settings": {}}),
    "Apache's words": {"settings": {"lockInStrictMode": True, "enableRemoteEscape": True}},
    "no escape": {"groups": 2, "settings": {"enableRemoteEscape": False}},
    "defects": {"settings": {"drillDefects": "lost-queue-tail", "drillFaultsEnable": True}},
    "async": {"settings": {"brokerRole": "ASYNC_MASTER", "flushDiskType": "SYNC_FLUSH"}},
}


def nodes_of(description):
    """Return node → all of its settings."""
    nodefile.check_settings(description.settings, description.replicas, description.controllers)
    controllers = ["127.0.0.1:1"] * description.controllers
    found = {}
    for node in description.nodes():
        given = {"port": node.port, "namesrv": "127.0.0.1:9876", "controllers": controllers, "there": {}}
        content = nodefile.contents(description, node, Path("/folder"), **given)
        found[node.node] = dict(config.from_values(node.kind, content).values)
    return found


def recorded(plan, nodes, tmp_path, changed=None):
    """Save and load the plan of a drill; `changed`: settings of the master changed while it ran."""
    name = plan.group or "broker-a"
    # In controller mode any member may be master; all have the same settings.
    master = nodes.get(f"{name}-0") or nodes[f"{name}-1"] | {"brokerRole": "SYNC_MASTER"}
    master |= changed or {}
    made = plan_as_recorded(plan, {key: show(master[key]) for key in SEEN if key in master})
    loaded = runs.load_plan(runs.new_run(tmp_path, made))
    assert loaded == made
    return loaded


def own(plan):
    return Description(name="drill", **shape_of(plan)).checked()


@pytest.mark.parametrize("name", PLANS)
def test_a_replay_has_the_plan_and_the_settings_of_the_drill(name, tmp_path):
    plan = PLANS[name]
    nodes = nodes_of(own(plan))
    first = recorded(plan, nodes, tmp_path)
    assert nodes_of(own(first)) == nodes
    assert own(first).containers() == own(plan).containers()
    assert recorded(first, nodes, tmp_path) == first


@pytest.mark.parametrize("name", CLUSTERS)
@pytest.mark.parametrize("fault", ["kill", "pause"])
def test_a_replay_of_fail_master_has_a_cluster_like_the_one_that_ran(name, fault, tmp_path):
    description = Description(name="drill", **CLUSTERS[name]).checked()
    group = {1: "broker-a", 2: "broker-b", 3: "broker-c"}[description.groups]
    nodes = nodes_of(description)
    first = recorded(plan_for(description, Plan(fault=fault, group=group, fault_ms=0)), nodes, tmp_path)
    assert nodes_of(own(first)) == nodes
    assert own(first).containers() == description.containers()
    assert recorded(first, nodes, tmp_path) == first


@pytest.mark.parametrize(
    "changed", [{"slaveTimeout": 777}, {"lockInStrictMode": True}, {"lockMode": "strict"}, {"escapeStrategy": "local"}]
)
def test_what_was_changed_on_the_running_master_holds_in_the_replay(changed, tmp_path):
    description = Description(name="drill", settings={"slaveTimeout": 1500}).checked()
    first = recorded(plan_for(description, Plan(group="broker-a")), nodes_of(description), tmp_path, changed)
    replayed = nodes_of(own(first))
    assert {key: replayed["broker-a-0"][key] for key in changed} == changed
    assert recorded(first, replayed, tmp_path) == first


@pytest.mark.parametrize(
    ("settings", "escapes"),
    [
        ({"escapeStrategy": "auto", "enableRemoteEscape": "false"}, True),
        ({"escapeStrategy": "spool"}, True),
        ({"escapeStrategy": "", "enableRemoteEscape": "true"}, True),
        ({"escapeStrategy": "none", "enableRemoteEscape": "true"}, False),
        ({"escapeStrategy": "local"}, False),
        ({}, False),
    ],
)
def test_a_fault_is_held_for_delayed_messages_that_have_another_group_to_go_to(settings, escapes):
    plan = Plan(fault="pause", groups=2, replicas=3, fault_ms=0)
    seen = {"enableSlaveActingMaster": "true", **settings}
    assert bool(plan_as_recorded(plan, seen).hold_ms) is escapes
    assert not plan_as_recorded(plan.changed(groups=1), seen).hold_ms
    assert not plan_as_recorded(plan.changed(replicas=2), {**seen, "lockMode": "strict"}).hold_ms


def test_two_keys_for_one_choice_must_agree():
    plan = Plan(replicas=2, settings={"lockMode": "loose", "lockInStrictMode": "true"})
    with pytest.raises(Exception, match="disagree"):
        nodefile.check_settings(shape_of(plan)["settings"], 2)


def test_a_replay_of_a_secure_cluster_is_secure_and_records_no_secret(tmp_path):
    secret = "the secret of the nodes"
    settings = {
        "authenticationEnabled": "true",
        "innerClientAuthenticationCredentials": f'{{"accessKey":"inner","secretKey":"{secret}"}}',
        "slaveTimeout": 1500,
    }
    description = Description(name="drill", secure=True, settings=settings).checked()
    run = runs.new_run(tmp_path, plan_for(description, Plan(group="broker-a")))
    assert own(runs.load_plan(run)).secure
    assert own(runs.load_plan(run)).settings["slaveTimeout"] == "1500"
    assert not [path for path in run.rglob("*") if path.is_file() and secret in path.read_text()]
