"""The description of a cluster: cluster.toml, its nodes and their ports."""

import pytest

from rmqkit.cluster.errors import UsageProblem
from rmqkit.cluster.layout.description import CONTROLLERS_MAX, Description, parse, parse_settings, read
from rmqkit.cluster.layout.presets import with_preset
from rmqkit.controller.raft.core import MEMBERS_MAX


def test_the_default_is_one_name_server_and_one_group_of_two_brokers_at_rocketmqs_ports():
    nodes = Description().nodes()
    assert [(plan.node, plan.kind, plan.port) for plan in nodes] == [
        ("ns-0", "nameserver", 9876),
        ("broker-a-0", "broker", 10911),
        ("broker-a-1", "broker", 10921),
    ]
    assert nodes[1].ports(10911) == (10911, 10909, 10912)
    assert nodes[0].ports(9876) == (9876,)


def test_the_ports_of_two_nodes_differ_by_ten():
    nodes = Description(groups=3, nameservers=2, replicas=1).nodes()
    assert [(plan.node, plan.port) for plan in nodes] == [
        ("ns-0", 9876),
        ("ns-1", 9886),
        ("broker-a-0", 10911),
        ("broker-b-0", 10921),
        ("broker-c-0", 10931),
    ]


def test_the_brokers_of_a_group_follow_each_other():
    nodes = Description(groups=2, replicas=3).nodes()[1:]
    assert [(plan.node, plan.broker_name, plan.broker_id, plan.port) for plan in nodes] == [
        ("broker-a-0", "broker-a", 0, 10911),
        ("broker-a-1", "broker-a", 1, 10921),
        ("broker-a-2", "broker-a", 2, 10931),
        ("broker-b-0", "broker-b", 0, 10941),
        ("broker-b-1", "broker-b", 1, 10951),
        ("broker-b-2", "broker-b", 2, 10961),
    ]
    assert [plan.is_slave for plan in nodes] == [False, True, True] * 2
    assert {plan.master for plan in nodes} == {"broker-a-0", "broker-b-0"}


def test_a_base_port_counts_name_servers_first():
    nodes = Description(groups=2, nameservers=2, replicas=1, base_port=20000).checked().nodes()
    assert [plan.port for plan in nodes] == [20000, 20010, 20020, 20030]


@pytest.mark.parametrize(
    ("layout", "processes"),
    [
        ("apart", {}),
        ("all", {"container-0": "a-0 a-1 a-2 b-0 b-1 b-2 c-0 c-1 c-2"}),
        ("replica", {"container-0": "a-0 b-0 c-0", "container-1": "a-1 b-1 c-1", "container-2": "a-2 b-2 c-2"}),
        ("crosswise", {"container-0": "a-0 b-2 c-1", "container-1": "a-1 b-0 c-2", "container-2": "a-2 b-1 c-0"}),
    ],
)
def test_brokers_share_processes(layout, processes):
    description = Description(groups=3, replicas=3, layout=layout, base_port=20000).checked()
    found = {}
    for plan in description.nodes():
        if plan.container:
            found.setdefault(plan.container, []).append(plan.node.removeprefix("broker-"))
        assert plan.process == (plan.container or plan.node)
    assert {name: " ".join(nodes) for name, nodes in sorted(found.items())} == processes
    # Each container has one port, after those of the brokers.
    assert [(each.node, each.port) for each in description.containers()] == [
        (name, 20100 + 10 * number) for number, name in enumerate(processes)
    ]


@pytest.mark.parametrize(("groups", "replicas"), [(2, 3), (3, 2), (4, 4), (1, 1)])
def test_crosswise_no_process_has_two_of_a_group(groups, replicas):
    plans = Description(groups=groups, replicas=replicas, layout="crosswise").nodes()[1:]
    assert len({(plan.container, plan.broker_name) for plan in plans}) == len(plans)
    masters = [plan.container for plan in plans if not plan.broker_id]
    assert len(set(masters)) == groups


def test_processes_of_several_brokers_begin_at_apaches_port():
    description = Description(layout="replica")
    assert [each.port for each in description.containers()] == [10811, 10821]


def test_the_preset_is_three_by_three():
    made = Description().changed(**with_preset("crosswise", {"replicas": None}))
    assert (made.groups, made.replicas, made.layout) == (3, 3, "crosswise")
    assert with_preset("crosswise", {"replicas": 2})["replicas"] == 2


def test_toml_and_back_is_the_same():
    wanted = Description(
        name="shop", groups=2, bind="0.0.0.0", advertise="10.0.0.7", settings={"flushDiskType": "SYNC_FLUSH", "tls.x": 1}
    )
    assert parse(wanted.toml(), "f") == wanted


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('layout = "x"', "layout = 'x': must be apart, all, replica or crosswise"),
        ("groups = 0", "groups = 0: must be from 1 to 26"),
        ("groups = 27", "groups = 27"),
        ("nameservers = 10", "nameservers = 10"),
        ("replicas = 0", "replicas = 0: must be from 1 to 9"),
        ("replicas = 10", "replicas = 10"),
        ("gruops = 1", "unknown key 'gruops'; did you mean groups?"),
        ("groups = 'x'", "groups must be a whole number"),
        ("groups = true", "groups must be a whole number"),
        ("any_port = 1", "any_port must be true or false"),
        ("name = '../x'", "cannot be a cluster's name"),
        ("name = 'master'", "selects nodes"),
        ("name = 'broker-a'", "selects nodes"),
        ("base_port = 65530", "between 1024 and 65535"),
        ("base_port = 80", "between 1024 and 65535"),
        ("settings = 3", "[settings] must be a table"),
        ("[settings]\na = [1]", "settings.a must be"),
        ("groups = ", "f: "),
    ],
)
def test_a_wrong_file_is_one_line_that_names_it(text, says):
    with pytest.raises(UsageProblem) as caught:
        parse(text, "f")
    assert str(caught.value).startswith("f: ")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_file_that_cannot_be_read_is_a_usage_problem(tmp_path):
    with pytest.raises(UsageProblem, match="No such file"):
        read(tmp_path / "absent.toml")


def test_a_file_of_a_cluster_without_replicas_stays_one():
    """The file is in the form that `cluster up` wrote before there was replication."""
    old = parse('name = "default"\ngroups = 1\nreplicas = 1\nnameservers = 1\nany_port = false\n', "f")
    assert [plan.node for plan in old.nodes()] == ["ns-0", "broker-a-0"]
    assert [plan.node for plan in old.changed(groups=2).nodes()] == ["ns-0", "broker-a-0", "broker-b-0"]


def test_changes_keep_what_was_not_asked_for():
    first = Description(groups=2, settings={"a": 1, "b": 2})
    then = first.changed(groups=None, nameservers=2, settings={"b": 3})
    assert (then.groups, then.nameservers, then.settings) == (2, 2, {"a": 1, "b": 3})


def test_settings_are_key_equals_value():
    assert parse_settings(["a=1", " b = x=y "]) == {"a": "1", "b": "x=y"}
    for wrong in ("a", "=1"):
        with pytest.raises(UsageProblem, match="key=value"):
            parse_settings([wrong])


@pytest.mark.parametrize(
    ("bind", "advertise", "told"),
    [
        ("127.0.0.1", "", "127.0.0.1"),
        ("0.0.0.0", "", "127.0.0.1"),
        ("10.0.0.7", "", "10.0.0.7"),
        ("0.0.0.0", "localhost", "127.0.0.1"),
        ("::1", "", "::1"),
        ("localhost", "", "127.0.0.1"),
    ],
)
def test_the_advertised_address_is_one_that_clients_can_use(bind, advertise, told):
    assert Description(bind=bind, advertise=advertise).advertised == told


def test_a_host_that_is_not_known_is_named():
    with pytest.raises(UsageProblem, match=r"advertise = 'db1\.invalid': no such host"):
        _ = Description(advertise="db1.invalid").advertised


def test_controllers_have_nodes_and_ports_of_their_own():
    plans = Description(controllers=3, replicas=3).nodes()
    assert [plan.node for plan in plans] == [
        *("ns-0", "controller-0", "controller-1", "controller-2"),
        *("broker-a-1", "broker-a-2", "broker-a-3"),
    ]
    assert [plan.port for plan in plans] == [9876, 19876, 19886, 19896, 10911, 10921, 10931]
    assert [plan.kind for plan in plans] == ["nameserver", *["controller"] * 3, *["broker"] * 3]
    assert not any(plan.is_slave for plan in plans)
    moved = Description(controllers=3, replicas=3, base_port=20000).nodes()
    assert [plan.port for plan in moved] == [20000, 20040, 20050, 20060, 20010, 20020, 20030]


def test_controllers_are_as_many_as_their_log_can_have():
    assert CONTROLLERS_MAX == MEMBERS_MAX
    with pytest.raises(UsageProblem, match="controllers = 6: must be from 0 to 5"):
        Description().changed(controllers=6)
    with pytest.raises(UsageProblem, match="with controllers: must be apart"):
        Description().changed(controllers=3, layout="all")


def test_controllers_have_metrics_ports():
    plans = Description(controllers=1, settings={"metricsExporterType": "PROM"}).nodes()
    assert [plan.metrics_port for plan in plans] == [5557, 5567, 5577, 5587]
