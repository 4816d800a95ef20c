"""The order of rules (`AclAuthorizationHandler.comparePolicyEntries`); Deny is first of equals."""

import pytest

from rmqkit.access.decision import decide, may_some
from rmqkit.access.model import (
    Action,
    Decision,
    PolicyEntry,
    PolicyType,
    Resource,
    ResourceType,
    read_network,
    read_source,
)

T = Resource(ResourceType.TOPIC, "orders")
PUB = frozenset([Action.PUB])


def rules(*texts, kind=PolicyType.CUSTOM):
    """Rules such as `+Topic:orders Pub,Sub 10.0.0.1`."""
    entries = []
    for text in texts:
        resource, actions, *source = text[1:].split()
        decision = Decision.ALLOW if text[0] == "+" else Decision.DENY
        words = frozenset(map(Action, actions.split(",")))
        entries.append(PolicyEntry(Resource.parse(resource), words, decision, tuple(map(read_network, source))))
    return {kind: tuple(entries)}


@pytest.mark.parametrize(
    ("texts", "allowed"),
    [
        ([], False),
        (["+Topic:orders Pub"], True),
        (["+Topic:orders Sub"], False),
        (["+Topic:orders All"], True),
        (["+Group:orders Pub"], False),
        (["+* All"], True),
        (["+Topic:* Pub", "-Topic:orders Pub"], False),
        (["-Topic:* Pub", "+Topic:orders Pub"], True),
        (["+Topic:ord* Pub", "-Topic:orde* Pub"], False),
        (["-Topic:ord* Pub", "+Topic:orde* Pub"], True),
        (["-Topic:ord* Pub", "+Topic:* Pub"], False),
        (["-* All", "+Topic:* Pub"], True),
        (["+* All", "-Topic:* All"], False),
        (["+Topic:order Pub"], False),
        (["-Topic:orders Sub", "+Topic:* Pub"], True),
    ],
)
def test_the_most_exact_rule_decides(texts, allowed):
    for order in (texts, texts[::-1]):
        assert decide(rules(*order), T, PUB, None).is_allowed is allowed


def test_deny_wins_among_equals():
    """Equal resources are merged by the table, so only a table of another make has both."""
    for order in (["+Topic:orders Pub", "-Topic:orders Pub"], ["-Topic:orders Pub", "+Topic:orders Pub"]):
        assert not decide(rules(*order), T, PUB, None).is_allowed


def test_one_of_the_asked_actions_is_enough():
    asked = frozenset([Action.SUB, Action.GET])
    assert decide(rules("+Topic:orders Get"), T, asked, None).is_allowed
    assert not decide(rules("-Topic:orders Get", "+Topic:* Sub"), T, asked, None).is_allowed


def test_default_rules_decide_only_without_custom_ones():
    default = rules("+Topic:* Pub", kind=PolicyType.DEFAULT)
    assert decide(default, T, PUB, None).is_allowed
    assert decide({**default, **rules("+Topic:other Pub")}, T, PUB, None).is_allowed
    assert not decide({**default, **rules("-* All")}, T, PUB, None).is_allowed


def test_a_rule_for_other_addresses_does_not_apply():
    policies = rules("+Topic:orders Pub 10.0.0.0/8", "-Topic:* Pub")
    assert decide(policies, T, PUB, read_source("10.1.1.1")).is_allowed
    assert not decide(policies, T, PUB, read_source("11.1.1.1")).is_allowed
    assert not decide(policies, T, PUB, None).is_allowed


def test_the_whole_type_needs_a_rule_for_all_of_it():
    every = Resource.parse("Topic:*")
    assert decide(rules("+Topic:* List"), every, frozenset([Action.LIST]), None).is_allowed
    for text in ("+Topic:a* List", "+Topic:a List", "+Group:* List"):
        assert not decide(rules(text), every, frozenset([Action.LIST]), None).is_allowed


def test_the_verdict_names_the_rule():
    verdict = decide(rules("+Topic:* Pub", "-Topic:ord* All"), T, PUB, None)
    assert (verdict.policy, str(verdict.entry)) == (PolicyType.CUSTOM, "Deny All on Topic:ord*")
    assert verdict.why == "the decision is deny."
    assert decide({}, T, PUB, None)[1:] == ("no matched policies.", None, None)


def test_some_of_a_type():
    assert may_some(rules("+Topic:a* List"), ResourceType.TOPIC, Action.LIST, None)
    assert may_some(rules("+* All"), ResourceType.GROUP, Action.LIST, None)
    for text in ("-Topic:* List", "+Group:* List", "+Topic:* Get", "+Topic:* List 10.0.0.1"):
        assert not may_some(rules(text), ResourceType.TOPIC, Action.LIST, None)
