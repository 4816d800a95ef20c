"""A broker with access control: who gets in, what users may do, and changes at run time."""

import json
import random

import pytest

from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.remoting.frames import FrameBuffer
from rmqkit.wire.remoting.headers import decode_head
from tests.broker import requests
from tests.broker.conftest import MakeScript, make  # noqa: F401  # a fixture
from tests.helpers.script import Client, Script, write_command
from tests.helpers.signing import INNER, ROOT, SETTINGS, ask, signed

NO = ResponseCode.NO_PERMISSION
ANN = ("ann", "ann-secret")
#: the connection of a slave in another process of this machine
HA_PEER = "127.0.0.1:50001"


def user_body(password="ann-secret", **fields):
    return json.dumps({"password": password, **fields}).encode()


def acl_body(*rules, kind="Custom"):
    entries = [
        {"resource": resource, "actions": actions.split(","), "decision": "Allow", "sourceIps": list(sources)}
        for resource, actions, *sources in rules
    ]
    return json.dumps({"policies": [{"policyType": kind, "entries": entries}]}).encode()


def add_user(client: Client, name="ann", by=ROOT, **fields):
    return ask(client, by, RequestCode.AUTH_CREATE_USER, {"username": name}, user_body(**fields))


def allow(client: Client, *rules, name="ann", by=ROOT):
    return ask(client, by, RequestCode.AUTH_CREATE_ACL, {"subject": f"User:{name}"}, acl_body(*rules))


@pytest.fixture
def broker(make: MakeScript) -> Script:  # noqa: F811
    script = make(*SETTINGS, "autoCreateTopicEnable=true")
    client = script.connect()
    assert add_user(client).code == 0
    return script


@pytest.fixture
def client(broker: Script) -> Client:
    return broker.connect()


def send(client: Client, user, topic="T", **changes):
    return ask(client, user, RequestCode.SEND_MESSAGE_V2, requests.send_fields(topic), b"hello", **changes)


def test_a_request_without_a_user_is_refused(client):
    answer = send(client, None)
    assert (answer.code, answer.remark) == (NO, "username cannot be null.")


@pytest.mark.parametrize(
    ("user", "remark"),
    [
        (("bob", "x"), "User:bob is not found."),
        (("ann", "wrong"), "check signature failed."),
        (("node", "wrong"), "check signature failed."),
        (("root", ""), "check signature failed."),
    ],
)
def test_the_remarks_are_apaches(client, user, remark):
    answer = send(client, user)
    assert (answer.code, answer.remark) == (NO, remark)


def test_a_user_needs_a_rule(client):
    answer = send(client, ANN)
    remark = "User:ann has no permission to access Topic:T from {}, no matched policies."
    assert (answer.code, answer.remark) == (NO, remark.format(client.conn.peer.host))
    assert allow(client, ("Topic:T", "Pub")).code == 0
    assert send(client, ANN).code == 0
    assert send(client, ANN, "U").code == NO


@pytest.mark.parametrize("user", [ROOT, INNER])
def test_super_users_and_nodes_need_none(client, user):
    assert send(client, user).code == 0


def test_both_header_formats_are_checked(client):
    assert send(client, ROOT, codec=1).code == 0
    assert send(client, ("root", "wrong"), codec=1).code == NO


def test_every_request_is_checked(client):
    """Apache's stateful strategy believes a connection for a minute."""
    assert send(client, ROOT).code == 0
    assert send(client, ("root", "wrong")).code == NO
    assert send(client, None).code == NO


def test_a_one_way_request_is_refused_without_an_answer(broker, client):
    fields = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "5"}
    client.tell(RequestCode.UPDATE_CONSUMER_OFFSET, fields, flag=2)
    assert client.take() == []
    assert broker.node.offsets.table == {}


def test_a_source_address_limits_a_rule(client):
    allow(client, ("Topic:T", "Pub", "192.0.2.0/24"))
    assert send(client, ANN).code == NO
    allow(client, ("Topic:T", "Pub", client.conn.peer.host))
    assert send(client, ANN).code == 0


# --- the fields of a request


def test_the_order_of_fields_does_not_matter(client):
    whole = signed(ROOT, requests.send_fields("T"), b"hello")
    for fields in (whole, dict(reversed(whole.items())), dict(sorted(whole.items()))):
        assert client.ask(RequestCode.SEND_MESSAGE_V2, fields, b"hello").code == 0


def test_unknown_fields_are_signed_too(client):
    """The fast decoders drop them; the signature covers them nevertheless."""
    for codec in (0, 1):
        whole = signed(ROOT, {**requests.send_fields("T"), "ns": "x"}, b"hello")
        assert client.ask(RequestCode.SEND_MESSAGE_V2, whole, b"hello", codec=codec).code == 0
        added = {**signed(ROOT, requests.send_fields("T"), b"hello"), "ns": "x"}
        assert client.ask(RequestCode.SEND_MESSAGE_V2, added, b"hello", codec=codec).code == NO


def test_a_duplicate_field_is_checked_as_it_is_handled(broker, client):
    """JSON: the last one counts for the signature, and for the topic of the message."""
    fields = signed(ROOT, requests.send_fields("T"), b"hello")
    text = json.dumps({"code": 310, "extFields": fields, "flag": 0, "language": "JAVA", "opaque": 9, "version": 479})
    for extra, code in (('"b":"other",', 0), ('"b":"T",', 0)):
        frame = text.replace('"extFields": {', '"extFields": {' + extra)
        client.send(_frame(frame.encode(), b"hello"))
        assert client.answer_to(9).code == code
    assert "other" not in broker.node.topics.by_name
    late = text.replace('"Signature"', '"b": "other", "Signature"')
    client.send(_frame(late.encode(), b"hello"))
    assert client.answer_to(9).code == NO


def _frame(header: bytes, body: bytes) -> bytes:
    size = len(header)
    return (4 + size + len(body)).to_bytes(4, "big") + size.to_bytes(4, "big") + header + body


@pytest.mark.parametrize("wrong", ["", "x", "=" * 28, "ü" * 28, "A" * 10_000])
def test_bad_signatures(client, wrong):
    fields = {**signed(ROOT, requests.send_fields("T"), b"hello"), "Signature": wrong}
    for codec in (0, 1):
        assert client.ask(RequestCode.SEND_MESSAGE_V2, fields, b"hello", codec=codec).code == NO


def test_a_truncated_frame_of_a_signed_request_is_no_request(broker, client):

    data = write_command(RequestCode.SEND_MESSAGE_V2, signed(ROOT, requests.send_fields("T"), b"hello"), b"hello")
    for end in range(0, len(data), 37):
        other = broker.connect()
        other.send(data[:end])
        assert other.take() == []
        other.close()
    assert "T" not in broker.node.topics.by_name


def test_a_replayed_request_passes(client):
    """The protocol has no nonce: only TLS keeps a request from being read and sent again."""
    fields = signed(ROOT, requests.send_fields("T"), b"hello")
    for _ in range(2):
        assert client.ask(RequestCode.SEND_MESSAGE_V2, fields, b"hello").code == 0


# --- rules that change


def test_a_deleted_user_loses_its_connection_s_rights_at_once(client):
    allow(client, ("Topic:T", "Pub"))
    assert send(client, ANN).code == 0
    assert ask(client, ROOT, RequestCode.AUTH_DELETE_USER, {"username": "ann"}).code == 0
    assert send(client, ANN).remark == "User:ann is not found."


def test_a_disabled_user(client):
    assert ask(client, ROOT, RequestCode.AUTH_UPDATE_USER, {"username": "ann"}, b'{"userStatus":"disable"}').code == 0
    assert send(client, ANN).remark == "User:ann is disabled."


@pytest.mark.parametrize("how", ["user", "rule"])
def test_a_held_pull_ends_when_its_right_is_withdrawn(broker, client, how):
    allow(client, ("Topic:T", "Pub,Sub"), ("Group:CG", "Sub"))
    send(client, ANN)
    fields = requests.pull_fields("T", offset=1, sysFlag="6", suspendTimeoutMillis="15000")
    opaque = client.tell(RequestCode.PULL_MESSAGE, signed(ANN, fields))
    assert client.answer_to(opaque) is None
    if how == "user":
        ask(client, ROOT, RequestCode.AUTH_DELETE_USER, {"username": "ann"})
    else:
        allow(client, ("Topic:T", "Pub"))
    send(client, ROOT)
    answer = client.answer_to(opaque)
    assert answer is not None
    assert answer.code == NO
    assert answer.body == b""


def test_a_held_pull_goes_on_while_its_right_lasts(broker, client):
    allow(client, ("Topic:T", "Pub,Sub"), ("Group:CG", "Sub"))
    send(client, ANN)
    fields = requests.pull_fields("T", offset=1, sysFlag="6", suspendTimeoutMillis="15000")
    opaque = client.tell(RequestCode.PULL_MESSAGE, signed(ANN, fields))
    allow(client, ("Topic:U", "Pub"))
    send(client, ROOT)
    assert client.answer_to(opaque).code == 0


# --- resources known only after a read


def stored(client: Client, topic="T"):
    answer = send(client, ROOT, topic)
    assert answer.code == 0
    return int(answer.ext["msgId"][-16:], 16)


def test_view_by_id_checks_the_stored_topic(client):
    offset = stored(client)
    allow(client, ("Topic:U", "Get"))
    fields = {"topic": "U", "offset": str(offset)}
    assert ask(client, ANN, RequestCode.VIEW_MESSAGE_BY_ID, fields).code == NO
    allow(client, ("Topic:T", "Get"))
    assert ask(client, ANN, RequestCode.VIEW_MESSAGE_BY_ID, fields).code == 0


def test_send_back_checks_the_stored_topic(client):
    offset = stored(client)
    allow(client, ("Topic:U", "Sub"), ("Group:CG", "Sub"))
    fields = {"offset": str(offset), "group": "CG", "delayLevel": "0", "originTopic": "U", "maxReconsumeTimes": "3"}
    assert ask(client, ANN, RequestCode.CONSUMER_SEND_MSG_BACK, fields).code == NO
    allow(client, ("Topic:T", "Sub"))
    assert ask(client, ANN, RequestCode.CONSUMER_SEND_MSG_BACK, fields).code == 0


def test_a_delayed_message_belongs_to_its_real_topic(client):
    delayed = requests.send_fields("T", i=f"{requests.UNIQ}DELAY\x015\x02")
    answer = ask(client, ROOT, RequestCode.SEND_MESSAGE_V2, delayed, b"hello")
    offset = int(answer.ext["msgId"][-16:], 16)
    allow(client, ("Topic:*", "Get"))
    assert ask(client, ANN, RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset)}).code == 0
    allow(client, ("Topic:U", "Get"), ("Topic:*", "Pub"))
    assert ask(client, ANN, RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset)}).code == NO


def test_a_sender_cannot_claim_another_real_topic(client):
    lying = requests.send_fields("T", i=f"{requests.UNIQ}REAL_TOPIC\x01U\x02")
    answer = ask(client, ROOT, RequestCode.SEND_MESSAGE_V2, lying, b"hello")
    allow(client, ("Topic:U", "Get"))
    offset = int(answer.ext["msgId"][-16:], 16)
    assert ask(client, ANN, RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset)}).code == NO


# --- topics that mean something else


@pytest.mark.parametrize("topic", ["%RETRY%other", "%RETRY%CG_x", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"])
def test_a_group_reads_no_foreign_retry_topic_and_nothing_internal(client, topic):
    allow(client, ("Topic:*", "Sub"), ("Group:*", "Sub"))
    assert ask(client, ANN, RequestCode.PULL_MESSAGE, requests.pull_fields(topic)).code == NO


def test_a_group_reads_its_own_retry_topic(client):
    allow(client, ("Group:CG", "Sub"))
    answer = ask(client, ANN, RequestCode.PULL_MESSAGE, requests.pull_fields("%RETRY%CG"))
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.parametrize(("topic", "by", "refusal"), [
    ("T", ANN, ""),
    # Java's answer to a check of the broker names the topic of the question
    ("RMQ_SYS_TRANS_HALF_TOPIC", ANN, ""),
    ("", ANN, ""),
    ("RMQ_SYS_TRANS_HALF_TOPIC", ("bob", "bob-secret"), "User:bob has no permission to access Topic:T"),
    ("", ("bob", "bob-secret"), "User:bob has no permission to access Topic:T"),
    ("T", ("bob", "bob-secret"), "User:bob has no permission to access Topic:T"),
])  # fmt: skip
def test_an_outcome_needs_pub_on_the_topic_of_its_half_message(client, topic, by, refusal):
    allow(client, ("Topic:T", "Pub"))
    add_user(client, "bob", password="bob-secret")
    text = "UNIQ_KEY\x010A000201000029FF0000000000000001\x02TRAN_MSG\x01true\x02PGROUP\x01PG\x02"
    fields = requests.send_fields("T") | {"i": text, "f": "4"}
    half = ask(client, ANN, RequestCode.SEND_MESSAGE_V2, fields, b"half")
    assert half.code == 0, half
    outcome = {
        "topic": topic,
        "producerGroup": "PG",
        "tranStateTableOffset": half.ext["queueOffset"],
        "commitLogOffset": str(int(half.ext["msgId"][-16:], 16)),
        "commitOrRollback": "12",
        "fromTransactionCheck": "false",
        "msgId": half.ext["transactionId"],
        "transactionId": half.ext["transactionId"],
    }
    answer = ask(client, by, RequestCode.END_TRANSACTION, {key: value for key, value in outcome.items() if value})
    assert answer.code == (NO if refusal else 0), answer
    assert (answer.remark or "").startswith(refusal)


def test_lists_are_filtered(client):
    for topic in ("secret", "shown"):
        send(client, ROOT, topic)
    allow(client, ("Topic:sh*", "List"))
    answer = ask(client, ANN, RequestCode.GET_ALL_TOPIC_CONFIG)
    assert list(answer.json["topicConfigTable"]) == ["shown"]
    assert answer.ext["totalTopicNum"] == "1"
    assert ask(client, ANN, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).code == NO
    assert len(ask(client, ROOT, RequestCode.GET_ALL_TOPIC_CONFIG).json["topicConfigTable"]) > 2


# --- users and rules


def test_mqadmin_s_life_of_a_user(client):
    assert add_user(client).code == 0
    assert add_user(client, password="other").remark == "The user is existed"
    assert ask(client, ROOT, RequestCode.AUTH_GET_USER, {"username": "ann"}).json == {
        "password": "ann-secret",
        "userStatus": "enable",
        "userType": "Normal",
        "username": "ann",
    }
    assert ask(client, ROOT, RequestCode.AUTH_GET_USER, {"username": "bob"}).body == b""
    names = [each["username"] for each in ask(client, ROOT, RequestCode.AUTH_LIST_USER, {"filter": "n"}).json]
    assert names == ["ann"]
    allow(client, ("Topic:T", "Pub"))
    acl = ask(client, ROOT, RequestCode.AUTH_GET_ACL, {"subject": "User:ann"}).json
    assert acl["policies"][0]["entries"] == [{"actions": ["Pub"], "decision": "Allow", "resource": "Topic:T"}]
    assert len(ask(client, ROOT, RequestCode.AUTH_LIST_ACL).json) == 1
    fields = {"subject": "User:ann", "resource": "Topic:T"}
    assert ask(client, ROOT, RequestCode.AUTH_DELETE_ACL, fields).code == 0
    assert ask(client, ROOT, RequestCode.AUTH_LIST_ACL).body == b""
    assert ask(client, ROOT, RequestCode.AUTH_GET_ACL, {"subject": "User:bob"}).code == NO


@pytest.mark.parametrize(
    ("code", "fields", "body", "answer"),
    [
        (RequestCode.AUTH_CREATE_USER, {}, user_body(), 29),
        (RequestCode.AUTH_CREATE_USER, {"username": "v"}, b"{}", 29),
        (RequestCode.AUTH_CREATE_USER, {"username": "v"}, user_body(userType="Boss"), 29),
        (RequestCode.AUTH_CREATE_USER, {"username": "v"}, b"not json", 1),
        (RequestCode.AUTH_UPDATE_USER, {"username": "v"}, b"{}", 16),
        (RequestCode.AUTH_DELETE_USER, {"username": "root"}, b"", 16),
        (RequestCode.AUTH_CREATE_USER, {"username": "node"}, user_body(), 16),
        (RequestCode.AUTH_CREATE_ACL, {"subject": "User:ann"}, b"", 29),
        (RequestCode.AUTH_CREATE_ACL, {"subject": "ann"}, acl_body(("Topic:T", "Pub")), 29),
        (RequestCode.AUTH_CREATE_ACL, {"subject": "User:v"}, acl_body(("Topic:T", "Pub")), 16),
        (RequestCode.AUTH_CREATE_ACL, {"subject": "User:ann"}, acl_body(("Topic:T", "Read")), 29),
        (RequestCode.AUTH_DELETE_ACL, {"subject": "User:ann", "resource": "nonsense"}, b"", 29),
    ],
)
def test_bad_changes_change_nothing(broker, client, code, fields, body, answer):
    allow(client, ("Topic:T", "Pub"))
    before = broker.node.view.access.table.snapshot().encode()
    assert ask(client, ROOT, code, fields, body).code == answer
    assert broker.node.view.access.table.snapshot().encode() == before


def test_a_user_with_update_on_the_cluster_sees_no_password_and_makes_no_super_user(client):
    allow(client, ("Cluster:DefaultCluster", "Update,Get"))
    assert add_user(client, "bob", by=ANN).code == 0
    assert "password" not in ask(client, ANN, RequestCode.AUTH_GET_USER, {"username": "root"}).json
    assert "secret" not in ask(client, ANN, RequestCode.AUTH_LIST_USER).body.decode()
    assert add_user(client, "eve", by=ANN, userType="Super").code == NO
    assert ask(client, ANN, RequestCode.AUTH_DELETE_USER, {"username": "root"}).code == NO


def test_no_answer_shows_a_secret(client):
    for code in (RequestCode.GET_BROKER_CONFIG, RequestCode.GET_BROKER_RUNTIME_INFO):
        answer = ask(client, ROOT, code)
        assert answer.code == 0
        assert b"secret" not in answer.body


def test_no_log_line_shows_a_secret_or_a_signature(broker, client):
    send(client, ("root", "wrong"))
    send(client, ANN)
    ask(client, ROOT, RequestCode.AUTH_UPDATE_USER, {"username": "ann"}, user_body("new-secret"))
    lines = repr(broker.log.lines)
    assert "access-refused" in lines
    assert "access-changed" in lines
    assert "secret" not in lines
    assert "Signature" not in lines


def test_without_authentication_nobody_plants_users(make):  # noqa: F811
    script = make()
    assert add_user(script.connect()).remark.startswith("authentication is off")


# --- other ports


def test_guessing_costs_the_connection(make):  # noqa: F811
    script = make(*SETTINGS, "authFailuresMax=3")
    client = script.connect()
    for _ in range(3):
        assert send(client, ("root", "wrong")).code == NO
    good = script.connect(peer=str(client.conn.peer))
    client.tell(RequestCode.SEND_MESSAGE_V2, signed(("root", "wrong"), requests.send_fields("T")), b"hello")
    assert client.conn.closing
    assert send(good, ROOT).code == 0
    script.advance(60_000)
    assert send(good, ("root", "wrong")).code == NO


def test_the_ha_port_wants_a_signed_claim(make):  # noqa: F811
    script = make(*SETTINGS)
    replica = script.connect("ha", peer=HA_PEER)
    replica.send((0).to_bytes(8, "big"))
    assert "haSlaveAddresses" in replica.conn.closing


def test_apache_s_slaves_are_admitted_by_address(make):  # noqa: F811
    script = make(*SETTINGS, "haSlaveAddresses=127.0.0.0/8")
    replica = script.connect("ha", peer=HA_PEER)
    replica.send((0).to_bytes(8, "big"))
    assert not replica.conn.closing


def test_a_hint_of_a_name_server_needs_no_signature(make):  # noqa: F811
    script = make(*SETTINGS, "namesrvAddr=192.0.2.7:9876")
    fields = {"minBrokerId": "1", "brokerName": "broker-a"}
    code = RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE
    assert script.connect(peer="192.0.2.7:1").ask(code, fields).code == 0
    assert script.connect(peer="192.0.2.8:1").ask(code, fields).code == NO


def test_a_hint_of_a_controller_needs_no_signature(make):  # noqa: F811
    script = make(*SETTINGS, "namesrvAddr=192.0.2.7:9876", "enableControllerMode=true", "controllerAddr=192.0.2.9:9878")
    fields = {"masterBrokerId": "1", "masterEpoch": "2"}
    code = RequestCode.NOTIFY_BROKER_ROLE_CHANGED
    assert script.connect(peer="192.0.2.9:1").ask(code, fields).code == 0
    assert script.connect(peer="192.0.2.8:1").ask(code, fields).code == NO


def test_a_node_signs_what_it_sends_to_its_peers(make):  # noqa: F811
    script = make(*SETTINGS, "namesrvAddr=192.0.2.7:9876")
    nameserver = script.dialled[0]
    script.accept(nameserver)
    request = nameserver.take()[0]
    fields = {key: value for key, value in request.ext.items() if key not in ("AccessKey", "Signature")}
    assert signed(INNER, fields, request.body) == request.ext


def test_a_node_does_not_sign_what_it_sends_to_its_clients(broker, client):
    """A client could send the request on to another broker, in the name of the node."""
    heartbeat = {
        "clientID": "c",
        "consumerDataSet": [{"groupName": "CG", "subscriptionDataSet": []}],
        "producerDataSet": [],
    }
    assert ask(client, ROOT, RequestCode.HEART_BEAT, {}, json.dumps(heartbeat).encode()).code == 0
    (notice,) = client.take()
    assert notice.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
    assert notice.ext == {"consumerGroup": "CG"}


# --- the audit


def audit(broker, event):
    return [fields for _, found, fields in broker.log.lines if found == event]


def test_a_refusal_is_one_line_with_user_address_request_and_reason(broker, client):
    before = len(audit(broker, "access-refused"))
    send(client, ANN)
    (line,) = audit(broker, "access-refused")[before:]
    assert (line["user"], line["peer"], line["request"]) == ("ann", str(client.conn.peer), "SEND_MESSAGE_V2")
    assert line["reason"] == "permission"
    assert "Topic:T" in line["why"]
    assert broker.node.view.access.audit.counts["permission"] == 1


def test_changes_by_administrators_are_noted_and_reads_and_sends_are_not(broker, client):
    before = len(audit(broker, "access-changed"))
    send(client, ROOT)
    ask(client, ROOT, RequestCode.GET_ALL_TOPIC_CONFIG)
    ask(client, ROOT, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    ask(client, ROOT, RequestCode.UPDATE_BROKER_CONFIG, {}, b"nonsense=1")
    ask(client, ROOT, RequestCode.UPDATE_BROKER_CONFIG, {}, b"traceOn=false")
    allow(client, ("Topic:T", "Pub"))
    lines = audit(broker, "access-changed")[before:]
    assert [line["request"] for line in lines] == ["DELETE_TOPIC_IN_BROKER", "UPDATE_BROKER_CONFIG", "AUTH_CREATE_ACL"]
    assert lines[0]["what"] == "DeleteTopicRequest(topic='T'), body of 0 bytes"
    assert lines[2]["what"] == "User:ann: Allow Pub on Topic:T"
    assert {line["user"] for line in lines} == {"root"}


# --- damaged frames


@pytest.mark.parametrize("codec", [0, 1], ids=["json", "binary"])
def test_no_damaged_frame_passes(make, codec):  # noqa: F811
    """Code, opaque, flag and version are not signed. A change of anything else is refused."""
    script = make(*SETTINGS, "authFailuresMax=100000", engine="memory")
    fields = signed(ROOT, requests.send_fields("T"), b"hello")
    whole = write_command(RequestCode.SEND_MESSAGE_V2, fields, b"hello", codec=codec)
    chance = random.Random(codec)
    store, passed = script.node.store, 0
    for _ in range(400):
        damaged = bytearray(whole)
        for _ in range(chance.randrange(1, 3)):
            damaged[chance.randrange(8, len(whole))] ^= 1 << chance.randrange(8)
        end = store.offset_written
        script.connect().send(bytes(damaged))
        if store.offset_written != end:
            (frame,) = FrameBuffer().feed(bytes(damaged))
            assert (decode_head(frame).ext_fields, frame.body) == (fields, b"hello")
            passed += 1
    assert passed < 100
    assert set(script.node.topics.by_name) & {"U", "S"} == set()


def test_a_duplicate_binary_field_is_checked_as_it_is_handled(broker, client):
    """Java's ACL hook writes each field twice in the binary format; the last one counts."""
    fields = signed(ROOT, requests.send_fields("T"), b"hello")
    whole = write_command(RequestCode.SEND_MESSAGE_V2, fields, b"hello", codec=1)
    size = int.from_bytes(whole[4:8], "big") & 0xFFFFFF
    header = whole[8 : 8 + size]
    pairs = header[21:]
    for extra, code in ((pairs, 0), (b"\0\1b\0\0\0\5other", NO)):
        longer = header[:17] + (len(pairs) + len(extra)).to_bytes(4, "big") + pairs + extra
        client.send(_binary_frame(longer, b"hello"))
        assert client.answer_to(1).code == code
    assert "other" not in broker.node.topics.by_name


def _binary_frame(header: bytes, body: bytes) -> bytes:
    size = len(header)
    return (4 + size + len(body)).to_bytes(4, "big") + (1 << 24 | size).to_bytes(4, "big") + header + body


def test_the_metrics_port_admits_by_address(make):  # noqa: F811
    on = ("metricsExporterType=PROM", "metricsSourceAddresses=192.0.2.0/24")
    script = make(*SETTINGS, *on)
    assert script.connect("metrics", peer="192.0.2.1:5").conn.closing == ""
    assert "metricsSourceAddresses" in script.connect("metrics", peer="127.0.0.1:5").conn.closing
    assert make("metricsExporterType=PROM").connect("metrics", peer="10.1.1.1:5").conn.closing == ""


def test_whitelists_are_codes(make):  # noqa: F811
    """Apache's lists are the same. Whoever is on the first only still needs a right."""
    code = int(RequestCode.GET_BROKER_RUNTIME_INFO)
    script = make(*SETTINGS, f"authenticationWhitelist={code}")
    assert script.connect().ask(code).code == NO
    both = (f"authenticationWhitelist={code}", f"authorizationWhitelist={code}")
    script = make(*SETTINGS, *both)
    client = script.connect()
    assert client.ask(code).code == 0
    assert ask(client, ("root", "wrong"), code).code == NO
    assert client.ask(RequestCode.GET_BROKER_CONFIG).code == NO
