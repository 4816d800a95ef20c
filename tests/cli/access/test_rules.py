"""Rules on the command line: what a new rule does to an old one, and brokers that differ."""

import pytest

from rmqkit.access.decision import decide
from rmqkit.access.model import Action, Decision, PolicyEntry, PolicyType, Resource
from rmqkit.cli.access.masters import where
from rmqkit.cli.access.rules import _asked, _has, _merged, _rule, _verdict_rows, rule_rows
from rmqkit.cli.errors import UsageError


def rule(actions: str, resource: str = "Topic:orders", decision: Decision = Decision.ALLOW, *sources: str) -> PolicyEntry:
    return _rule(actions, resource, decision, list(sources))


def test_a_rule_adds_its_actions_to_one_that_differs_in_nothing_else():
    merged, replaced = _merged(rule("Sub"), (rule("Pub"), rule("All", "Topic:other")))
    assert (merged, replaced) == (rule("Pub,Sub"), None)


def test_a_rule_for_another_decision_or_source_replaces_the_old_one():
    old = rule("Pub", "Topic:orders", Decision.DENY)
    assert _merged(rule("Sub"), (old,)) == (rule("Sub"), old)
    old = rule("Pub", "Topic:orders", Decision.ALLOW, "10.0.0.0/8")
    assert _merged(rule("Sub"), (old,)) == (rule("Sub"), old)


def test_a_retry_topic_means_its_group():
    assert _asked("Topic:%RETRY%billing") == Resource.parse("Group:billing")
    assert _asked("topic:orders*") == Resource.parse("Topic:orders*")


@pytest.mark.parametrize(
    ("actions", "resource", "sources", "text"),
    [
        ("Publish", "Topic:a", (), "action 'Publish' is unknown"),
        ("Any", "Topic:a", (), "can not be Any"),
        ("", "Topic:a", (), "actions is empty"),
        ("Pub", "Queue:a", (), "resource type 'Queue' is unknown"),
        ("Pub", "Topic:", (), "has no name"),
        ("Pub", "Topic:a", ("host.example",), "is no address"),
    ],
)
def test_what_cannot_be_read_is_a_usage_error(actions, resource, sources, text):
    with pytest.raises(UsageError, match=text):
        _rule(actions, resource, Decision.ALLOW, list(sources))


def test_rows_say_at_which_brokers_a_rule_is():
    same, other = rule("Pub"), rule("Sub", "Group:g", Decision.DENY, "10.0.0.1")
    rows = rule_rows(
        {
            "broker-a": {"app": {PolicyType.CUSTOM: (same, other)}},
            "broker-b": {"app": {PolicyType.CUSTOM: (same,)}},
        }
    )
    assert [(row["resource"], row["decision"], row["sources"], row["at"]) for row in rows] == [
        ("Group:g", "Deny", ["10.0.0.1"], "broker-a"),
        ("Topic:orders", "Allow", [], "all"),
    ]
    assert where([], ["a"]) == ""


def test_a_verdict_names_the_rule_that_decides():
    policies = {PolicyType.DEFAULT: (rule("Pub", "Topic:ord*"), rule("Pub", "Topic:orders", Decision.DENY))}
    denied = decide(policies, Resource.parse("Topic:orders"), frozenset({Action.PUB}), None)
    allowed = decide(policies, Resource.parse("Topic:ord-2"), frozenset({Action.PUB}), None)
    none = decide(policies, Resource.parse("Group:g"), frozenset({Action.SUB}), None)
    rows = _verdict_rows({"a": denied, "b": denied, "c": allowed, "d": none})
    assert [(row["allowed"], row["at"]) for row in rows] == [(False, "a, b"), (True, "c"), (False, "d")]
    assert rows[0]["why"] == "the default rule `Deny Pub on Topic:orders` decides"
    assert rows[1]["rule"] == "Allow Pub on Topic:ord*"
    assert rows[2]["why"] == "no rule applies, and what no rule allows is refused"


def test_revoke_finds_a_rule_by_its_resource_and_policy():
    policies = {PolicyType.CUSTOM: (rule("Pub"),)}
    assert _has(policies, Resource.parse("Topic:orders"), PolicyType.CUSTOM)
    assert not _has(policies, Resource.parse("Topic:orders"), PolicyType.DEFAULT)
    assert not _has(policies, Resource.parse("Topic:order*"), PolicyType.CUSTOM)
    assert _has(policies, None, None)
