"""Administration of users and rules: which brokers get which requests."""

import json

import pytest

from rmqkit.access.model import Action, Decision, PolicyEntry, PolicyType, Resource
from rmqkit.client.admin import access
from rmqkit.errors import BrokerError
from rmqkit.wire.codes import RequestCode
from tests.client.peers import A, B
from tests.client.test_admin import begin, run
from tests.client.test_admin import peers as peers  # the fixture

RULE = PolicyEntry(Resource.parse("Topic:orders"), frozenset({Action.PUB, Action.SUB}), Decision.ALLOW)


def answered(peers, promise, code, *answers):
    """Answer the requests that come one after the other; return what they were."""
    seen = []
    for answer in answers:
        asked = peers.take(code)
        seen.append((asked.address, asked.ext, json.loads(asked.command.body or b"null")))
        asked.answer(**answer)
    assert promise.done, peers.waiting()
    return seen


def test_a_user_is_created_at_every_master(peers):
    promise = begin(peers, lambda admin: access.create_user(admin, "app", "pass", user_type="Super"))
    seen = answered(peers, promise, RequestCode.AUTH_CREATE_USER, {}, {})
    user = {"username": "app", "password": "pass", "userType": "Super", "userStatus": "enable"}
    assert seen == [(A, {"username": "app"}, user), (B, {"username": "app"}, user)]
    assert promise.result() == ["broker-a", "broker-b"]


def test_fields_that_are_not_given_do_not_change(peers):
    promise = begin(peers, lambda admin: access.update_user(admin, "app", user_status="disable", broker="broker-b"))
    seen = answered(peers, promise, RequestCode.AUTH_UPDATE_USER, {})
    assert seen == [(B, {"username": "app"}, {"username": "app", "userStatus": "disable"})]
    promise = begin(peers, lambda admin: access.delete_user(admin, "app", broker="broker-b"))
    assert answered(peers, promise, RequestCode.AUTH_DELETE_USER, {}) == [(B, {"username": "app"}, None)]


def test_a_refusal_stops_at_the_first_broker(peers):
    promise = begin(peers, lambda admin: access.create_user(admin, "app", "pass"))
    peers.take(RequestCode.AUTH_CREATE_USER).answer(16, remark="The user is existed")
    with pytest.raises(BrokerError, match="The user is existed"):
        promise.result()
    assert not peers.asked


def test_users_are_read_as_apache_writes_them(peers):
    promise = begin(peers, lambda admin: access.users(admin, "broker-a", "a"))
    body = b'[{"password":"p","userStatus":"enable","userType":"Normal","username":"zeta"},{"username":"alfa"}]'
    ((_, ext, _),) = answered(peers, promise, RequestCode.AUTH_LIST_USER, {"body": body})
    assert ext == {"filter": "a"}
    assert [each.username for each in promise.result()] == ["alfa", "zeta"]
    assert "'p'" not in repr(promise.result())
    promise = begin(peers, lambda admin: access.users(admin, "broker-a"))
    assert answered(peers, promise, RequestCode.AUTH_LIST_USER, {}) == [(A, {}, None)]
    assert promise.result() == []


def test_rules_are_added_and_deleted(peers):
    promise = begin(peers, lambda admin: access.put_rules(admin, "app", [RULE], broker="broker-a"))
    ((_, ext, body),) = answered(peers, promise, RequestCode.AUTH_CREATE_ACL, {})
    entry = {"actions": ["Pub", "Sub"], "decision": "Allow", "resource": "Topic:orders"}
    assert ext == {"subject": "User:app"}
    assert body == {"subject": "User:app", "policies": [{"policyType": "Custom", "entries": [entry]}]}
    for resource, policy, wanted in (
        ("Topic:orders", PolicyType.CUSTOM, {"resource": "Topic:orders", "policyType": "Custom"}),
        (None, None, {}),
    ):
        promise = begin(
            peers,
            lambda admin, r=resource, p=policy: access.delete_rules(admin, "app", r, policy=p, broker="broker-a"),
        )
        ((_, ext, _),) = answered(peers, promise, RequestCode.AUTH_DELETE_ACL, {})
        assert ext == {"subject": "User:app", **wanted}


def test_rules_are_read_by_policy(peers):
    entry = b'{"actions":["Sub","Pub"],"decision":"Allow","resource":"Topic:orders","sourceIps":[]}'
    acl = b'{"subject":"User:app","policies":[{"policyType":"Custom","entries":[%b]}]}' % entry
    promise = begin(peers, lambda admin: access.rules(admin, "broker-a", "app"))
    answered(peers, promise, RequestCode.AUTH_GET_ACL, {"body": acl})
    assert promise.result() == {PolicyType.CUSTOM: (RULE,)}
    promise = begin(peers, lambda admin: access.rules(admin, "broker-a", "app"))
    answered(peers, promise, RequestCode.AUTH_GET_ACL, {})
    assert promise.result() == {}
    promise = begin(peers, lambda admin: access.all_rules(admin, "broker-a", "a", "Topic"))
    ((_, ext, _),) = answered(peers, promise, RequestCode.AUTH_LIST_ACL, {"body": b"[%b]" % acl})
    assert ext == {"subjectFilter": "a", "resourceFilter": "Topic"}
    assert promise.result() == {"app": {PolicyType.CUSTOM: (RULE,)}}


def test_no_master_is_an_error(peers):
    peers.always[RequestCode.GET_BROKER_CLUSTER_INFO] = b'{"brokerAddrTable":{},"clusterAddrTable":{}}'
    with pytest.raises(Exception, match="no master is registered"):
        run(peers, lambda admin: access.delete_user(admin, "app"))
