"""Selectors of nodes, and names that cannot be confused with them."""

import pytest

from rmqkit.cluster.errors import UsageProblem
from rmqkit.cluster.layout.description import Description, NodePlan
from rmqkit.cluster.layout.names import check_cluster_name, looks_like_selector
from rmqkit.cluster.layout.selectors import possible, select

PLANS = [
    *Description(nameservers=2).nodes()[:2],
    NodePlan(node="broker-a-0", port=1, broker_name="broker-a", broker_id=0),
    NodePlan(node="broker-a-1", port=2, broker_name="broker-a", broker_id=1),
    NodePlan(node="broker-b-0", port=3, broker_name="broker-b", broker_id=0),
]


def test_a_process_selects_its_brokers():
    plans = Description(groups=2, layout="crosswise").nodes()
    assert [plan.node for plan in select(plans, "container-1")] == ["broker-a-1", "broker-b-0"]
    assert "container-1" in possible(plans)
    assert looks_like_selector("container-1")
    with pytest.raises(UsageProblem, match="did you mean container-1"):
        select(plans, "containr-1")


@pytest.mark.parametrize(
    ("selector", "nodes"),
    [
        ("all", "ns-0 ns-1 broker-a-0 broker-a-1 broker-b-0"),
        ("ns", "ns-0 ns-1"),
        ("ns-1", "ns-1"),
        ("master", "broker-a-0 broker-b-0"),
        ("slave", "broker-a-1"),
        ("broker-a", "broker-a-0 broker-a-1"),
        ("broker-a:1", "broker-a-1"),
        ("broker-a-1", "broker-a-1"),
        ("broker-b, ns-0", "ns-0 broker-b-0"),
        ("broker-a,broker-a:0", "broker-a-0 broker-a-1"),
    ],
)
def test_a_selector_means_nodes_in_the_clusters_order(selector, nodes):
    assert [plan.node for plan in select(PLANS, selector)] == nodes.split()


def test_every_selector_on_offer_means_something():
    for selector in possible(PLANS):
        assert select(PLANS, selector)


def test_a_typo_is_answered_with_the_nearest():
    with pytest.raises(UsageProblem, match="did you mean broker-a"):
        select(PLANS, "broker-aa")
    with pytest.raises(UsageProblem, match="did you mean master"):
        select(PLANS, "all,mastr")
    with pytest.raises(UsageProblem, match="there are all, master, ns"):
        select(PLANS, "zzz")


@pytest.mark.parametrize("name", ["default", "a", "Shop-1", "x.y_z", "masters", "broker", "broker-ab", "nsx"])
def test_names_a_cluster_may_have(name):
    assert check_cluster_name(name) == name
    assert not looks_like_selector(name)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "-x", "a b", "x" * 65, "a\n", "all", "master", "ns", "ns-3", "broker-a:1"]
)
def test_names_a_cluster_may_not_have(name):
    with pytest.raises(UsageProblem):
        check_cluster_name(name)


def test_controllers_and_elected_brokers():
    plans = Description(controllers=3, replicas=2).nodes()
    assert [plan.node for plan in select(plans, "controller")] == ["controller-0", "controller-1", "controller-2"]
    assert [plan.node for plan in select(plans, "controller-1,ns")] == ["ns-0", "controller-1"]
    assert [plan.node for plan in select(plans, "broker-a:2")] == ["broker-a-2"]
    # Which of them is master is known only while they run (`Cluster.select`).
    assert [plan.node for plan in select(plans, "master")] == ["broker-a-1", "broker-a-2"]
    assert looks_like_selector("controller-2")
    assert {"controller", "master", "slave"} <= set(possible(plans))
