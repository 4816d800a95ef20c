"""Text forms of resources, rules and users, as Apache reads and writes them."""

import pytest

from rmqkit.access.model import (
    AclUser,
    Action,
    BadAccessText,
    Decision,
    Pattern,
    PolicyEntry,
    PolicyType,
    Resource,
    ResourceType,
    acl_info,
    merge,
    read_network,
    read_policies,
    read_source,
    read_subject,
)
from rmqkit.wire.bodies.access import PolicyEntryInfo, PolicyInfo, UserInfo


@pytest.mark.parametrize(
    ("text", "resource"),
    [
        ("*", Resource(ResourceType.ANY, "", Pattern.ANY)),
        ("Topic:*", Resource(ResourceType.TOPIC, "", Pattern.ANY)),
        ("Topic:orders", Resource(ResourceType.TOPIC, "orders")),
        ("Topic:or*", Resource(ResourceType.TOPIC, "or", Pattern.PREFIXED)),
        ("Group:%ns%g", Resource(ResourceType.GROUP, "%ns%g")),
        ("Cluster:c", Resource(ResourceType.CLUSTER, "c")),
        ("Namespace:n*", Resource(ResourceType.NAMESPACE, "n", Pattern.PREFIXED)),
    ],
)
def test_a_resource_is_read_and_written(text, resource):
    assert Resource.parse(text) == resource
    assert str(resource) == text


def test_the_type_ignores_case_and_the_name_does_not():
    assert Resource.parse("tOpIc:A") == Resource(ResourceType.TOPIC, "A")
    assert not Resource.parse("Topic:A").covers(Resource(ResourceType.TOPIC, "a"))


def test_a_name_is_cut_at_its_first_star():
    assert Resource.parse("Topic:a*b*") == Resource(ResourceType.TOPIC, "a", Pattern.PREFIXED)


@pytest.mark.parametrize("text", [None, "", " ", "Topic", "Topic:", "Queue:a", "Any:*", "**", f"Topic:{'x' * 256}"])
def test_any_other_text_is_an_error(text):
    with pytest.raises(BadAccessText):
        Resource.parse(text)


def entry(resource="Topic:T", actions=("Pub",), decision="Allow", sources=None):
    return PolicyEntry.read(
        PolicyEntryInfo(actions=list(actions), decision=decision, resource=resource, source_ips=sources)
    )


def test_a_rule_is_read_and_written():
    read = entry(actions=["pub", "SUB"], decision="deny", sources=["10.0.0.0/8", "::1", "192.168.1.7"])
    assert (read.actions, read.decision) == ({Action.PUB, Action.SUB}, Decision.DENY)
    info = read.info()
    assert info.source_ips == ["10.0.0.0/8", "::1", "192.168.1.7"]
    assert (info.actions, info.decision, info.resource) == (["Pub", "Sub"], "Deny", "Topic:T")
    assert str(read) == "Deny Pub,Sub on Topic:T from 10.0.0.0/8,::1,192.168.1.7"


@pytest.mark.parametrize(
    "change",
    [
        {"actions": []},
        {"actions": ["Any"]},
        {"actions": ["Pub", "Read"]},
        {"decision": None},
        {"decision": "Maybe"},
        {"sources": ["localhost"]},
        {"sources": [""]},
        {"sources": ["10.0.0.0/33"]},
        {"sources": ["::1"] * 101},
        {"resource": "Queue:q"},
    ],
)
def test_an_unknown_word_of_a_rule_is_an_error(change):
    """Apache drops unknown actions and keeps the rest of the rule."""
    with pytest.raises(BadAccessText):
        entry(**change)


@pytest.mark.parametrize(
    ("sources", "peer", "expected"),
    [
        (None, "10.1.2.3", True),
        (None, "drill.sock", True),
        (["10.1.2.3"], "10.1.2.3", True),
        (["10.1.2.3"], "10.1.2.4", False),
        (["10.0.0.0/8"], "10.255.0.1", True),
        (["10.0.0.0/8"], "11.0.0.1", False),
        (["10.0.0.0/8"], "::ffff:10.0.0.1", True),
        (["::/0"], "10.0.0.1", False),
        (["fe80::/10"], "fe80::1%eth0", True),
        (["10.0.0.0/8"], "some-host", False),
    ],
)
def test_source_addresses(sources, peer, expected):
    """Apache compares plain integers, so an IPv4 peer can be in an IPv6 range."""
    assert entry(sources=sources).is_for(read_source(peer)) is expected


def test_a_rule_for_an_equal_resource_replaces_the_older():
    before = read_policies([PolicyInfo(entries=[entry().info(), entry("Topic:U").info()])])[PolicyType.CUSTOM]
    after = merge(before, [entry(actions=["Sub"], decision="Deny")])
    assert [str(each) for each in after] == ["Deny Sub on Topic:T", "Allow Pub on Topic:U"]


def test_policies_are_read_and_written():
    policies = read_policies(
        [PolicyInfo(entries=[entry().info()]), PolicyInfo(entries=[entry().info()], policy_type="default")]
    )
    assert list(policies) == [PolicyType.CUSTOM, PolicyType.DEFAULT]
    info = acl_info("u", policies)
    assert info.subject == "User:u"
    assert read_policies(info.policies) == policies
    for wrong in ([], [PolicyInfo(entries=[])], [PolicyInfo(entries=[entry().info()], policy_type="x")]):
        with pytest.raises(BadAccessText):
            read_policies(wrong)


def test_a_user_is_read_with_apaches_defaults():
    user = AclUser.read(UserInfo(username="u", password="p"))
    assert (user.is_super, user.is_enabled) == (False, True)
    assert AclUser.read(UserInfo(username="u", password="p", user_type="SUPER", user_status="Disable")).is_super
    assert "p4ss" not in f"{AclUser.read(UserInfo(username='u', password='p4ss'))}"
    assert "p4ss" not in f"{UserInfo(username='u', password='p4ss')!r}"


@pytest.mark.parametrize(
    "info",
    [
        {"username": ""},
        {"username": "x" * 256},
        {"username": "a\nb"},
        {"password": ""},
        {"password": " "},
        {"password": "x" * 1025},
        {"user_type": "Admin"},
        {"user_status": "off"},
    ],
)
def test_a_bad_user_is_an_error(info):
    with pytest.raises(BadAccessText):
        AclUser.read(UserInfo(**{"username": "u", "password": "p", **info}))


def test_subjects():
    assert read_subject("User:u:v") == "u:v"
    for wrong in (None, "", "u", "Role:u", "User:"):
        with pytest.raises(BadAccessText):
            read_subject(wrong)


def test_an_ip_is_a_range_of_one():
    assert str(read_network("10.0.0.1")) == "10.0.0.1/32"
    assert read_network("10.0.0.1/8") == read_network("10.0.0.0/8")
