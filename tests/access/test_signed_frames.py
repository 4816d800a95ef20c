"""Signed frames under fuzz: a request is carried out if and only if its signature is Apache's.

The oracle below signs as Apache's clients do, with nothing of `rmqkit`: as
`AclUtils.combineRequestContent` over the fields that fastjson reads into a map of texts, and
`AclSigner.calSignature`. Frames are damaged in one way each. Whatever comes, no exception leaves
the node, and a frame that is refused changes nothing.
"""

import hashlib
import hmac
import json
from base64 import b64encode
from functools import cache
from typing import Any, NamedTuple

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from rmqkit.access.audit import Audit
from rmqkit.access.gate import AccessGate
from rmqkit.access.model import read_policies
from rmqkit.access.rules import PUB, on_topic
from rmqkit.access.table import AccessTable
from rmqkit.runtime.calls import Handlers
from rmqkit.runtime.node import BaseNode
from rmqkit.runtime.ports import Ports
from rmqkit.runtime.remoting import Remoting
from rmqkit.wire.bodies.access import PolicyEntryInfo, PolicyInfo, UserInfo
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.schemas.send import SendMessageRequestV2
from tests.broker.requests import send_fields
from tests.helpers.script import Client, Script, raw_frame, write_command

CODE = RequestCode.SEND_MESSAGE_V2
SECRETS = {"app": "secret-of-app", "other": "secret-of-other"}
NO_PERMISSION = 16


# --- the oracle


def java_text(value: Any) -> str:
    """Return a JSON value as fastjson reads it into a map of texts, and Java then joins it."""
    return value if isinstance(value, str) else json.dumps(value)


def signature(fields: dict[str, Any], body: bytes, secret: str) -> str:
    names = sorted((name for name in fields if name != "Signature"), key=lambda name: name.encode("utf-16-be"))
    content = "".join(java_text(fields[name]) for name in names).encode() + body
    return b64encode(hmac.digest(secret.encode(), content, hashlib.sha1)).decode()


def is_signed(fields: dict[str, Any], body: bytes) -> bool:
    """Whether a known user has signed the fields that arrived."""
    user, written = fields.get("AccessKey"), fields.get("Signature")
    return isinstance(user, str) and user in SECRETS and written == signature(fields, body, SECRETS[user])


# --- the node


class Sender(BaseNode):
    """A node that keeps the topics and bodies which it was sent."""

    def __init__(self, ports: Ports) -> None:
        super().__init__("sender", ports)
        rows = Handlers()
        self.sends: list[tuple[str, bytes]] = []

        @rows.handles(CODE, SendMessageRequestV2, access=on_topic(PUB, field="topic"))
        def send(node: Any, call: Any) -> Any:
            self.sends.append((call.args.topic, call.body))
            return call.ok()

        self.table = AccessTable(ports.disk, ports.clock, "config")
        rule = PolicyEntryInfo(actions=["Pub"], decision="Allow", resource="Topic:*")
        for name, secret in SECRETS.items():
            self.table.create_user(UserInfo(username=name, password=secret), by_super=True)
            self.table.put_rules(f"User:{name}", read_policies([PolicyInfo(entries=[rule])]), by_super=True)
        self.audit = Audit(ports.log, ports.clock, 10**9)
        self.remoting = Remoting(
            self, outbox=self.outbox, clock=ports.clock, duties=self.duties, log=ports.log, tables={"remoting": rows}
        )
        self.remoting.gate = AccessGate(lambda: [self.table], self.audit, has_rules=True)
        self.opened = self.remoting.opened
        self.received = self.remoting.received
        self.closed = self.remoting.closed


@cache
def script() -> Script[Sender]:
    return Script(Sender)


def sent(frame: bytes) -> tuple[bool, Client]:
    """Send a frame on a connection of its own. Return whether the handler ran."""
    node = script().node
    node.sends.clear()
    before = node.table.snapshot()
    client = script().connect()
    client.send(frame)
    if not client.closed:
        client.close()
    assert node.table.snapshot() == before
    assert [line for line in script().log.lines if line[1] == "handler-failed"] == []
    return bool(node.sends), client


# --- frames


class Fields(NamedTuple):
    """extFields as pairs, because a name may be there twice."""

    pairs: list[tuple[str, Any]]
    body: bytes

    @property
    def read(self) -> dict[str, Any]:
        """The fields as Java's map has them: the last of a name wins."""
        return dict(self.pairs)

    def json_frame(self, order: list[str]) -> bytes:
        """Return a frame whose header has its parts in an order of their own."""
        pairs = ",".join(
            f"{json.dumps(name, ensure_ascii=False)}:{json.dumps(value, ensure_ascii=False)}" for name, value in self.pairs
        )
        parts = {
            "code": f'"code":{int(CODE)}',
            "fields": f'"extFields":{{{pairs}}}',
            "rest": '"flag":0,"language":"JAVA","opaque":1,"serializeTypeCurrentRPC":"JSON","version":479',
        }
        return raw_frame(("{" + ",".join(parts[each] for each in order) + "}").encode(), self.body)

    def binary_frame(self) -> bytes:
        fields = b"".join(
            len(name.encode()).to_bytes(2, "big") + name.encode() + len(value.encode()).to_bytes(4, "big") + value.encode()
            for name, value in ((name, java_text(value)) for name, value in self.pairs)
        )
        plain = write_command(CODE, codec=1)
        head = plain[8:-4]  # without the size of the fields, which is 0
        return raw_frame(head + len(fields).to_bytes(4, "big") + fields, self.body, 1)


TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
KNOWN = {each.encode_name for each in msgspec.structs.fields(SendMessageRequestV2)}
#: names of fields that a send does not have
NAMES = st.one_of(
    st.sampled_from(["ns", "nsd", "ReqT", "bname", "OnsChannel", "zone", "A", "~", "\ufffd", "\U0001f600"]),
    TEXTS.filter(lambda name: name and name not in KNOWN),
)
SCALARS = st.one_of(TEXTS, st.integers(-(2**53), 2**53), st.booleans(), st.none())
BODIES = st.binary(max_size=40)
ORDERS = st.permutations(["code", "fields", "rest"])


@st.composite
def signed(draw: st.DrawFn) -> Fields:
    """Draw a request of user app with a right signature: fields of a send, and others."""
    own = {**send_fields("T"), "AccessKey": "app"}
    others = {name: value for name, value in draw(st.dictionaries(NAMES, SCALARS, max_size=4)).items() if name not in own}
    if draw(st.booleans()):  # as the C++ client and others write them
        own |= {"e": int(own["e"]), "m": False}
    fields = {**own, **others}
    fields.pop("Signature", None)
    body = draw(BODIES)
    pairs = draw(st.permutations([*fields.items(), ("Signature", signature(fields, body, SECRETS["app"]))]))
    return Fields(pairs, body)


def _replaced(fields: Fields, name: str, value: Any) -> Fields:
    return Fields([(each, value if each == name else old) for each, old in fields.pairs], fields.body)


@st.composite
def damaged(draw: st.DrawFn) -> Fields:
    """Draw a request whose signature may be wrong, in one way."""
    fields = draw(signed())
    right = fields.read["Signature"]
    at = draw(st.integers(0, len(fields.pairs)))
    name = draw(st.sampled_from([each for each, _ in fields.pairs]))

    def inserted(pair: tuple[str, Any]) -> Fields:
        return Fields([*fields.pairs[:at], pair, *fields.pairs[at:]], fields.body)

    return draw(
        st.sampled_from(
            [
                fields,
                inserted(("signature", right)),
                inserted((name, draw(SCALARS))),
                inserted((draw(NAMES), draw(SCALARS))),
                inserted(("AccessKey", draw(st.sampled_from(["app", "other", "App", "app ", "", 5, None, ["app"]])))),
                _replaced(fields, name, draw(SCALARS)),
                _replaced(fields, "AccessKey", "other"),
                Fields([each for each in fields.pairs if each[0] != name], fields.body),
                Fields(fields.pairs, draw(BODIES)),
                Fields(fields.pairs, fields.body + b"\0"),
                Fields([], fields.body),
            ]
        )
    )


@st.composite
def missigned(draw: st.DrawFn) -> Fields:
    """Draw a request with another signature, in place of the right one or beside it."""
    fields = draw(signed())
    right = fields.read["Signature"]
    wrong: Any = draw(
        st.one_of(
            st.integers(0, 27).map(lambda size: right[:size]),
            st.sampled_from(
                [right + "=", right + " ", " " + right, right.lower(), right.swapcase(), right[::-1], right + "\n"]
            ),
            st.just(right[:-1] + "\u00ff"),
            st.just(right.replace("=", "\uff1d")),  # a full-width sign
            TEXTS,
            st.integers(),
            st.booleans(),
            st.none(),
            st.just([right]),
            st.just({"Signature": right}),
            st.just(signature(fields.read, fields.body, SECRETS["other"])),
            st.just(signature(fields.read, fields.body, "")),
            st.just(signature(fields.read, b"", SECRETS["app"])),
        )
    )
    at = draw(st.integers(0, len(fields.pairs)))
    beside = Fields([*fields.pairs[:at], ("Signature", wrong), *fields.pairs[at:]], fields.body)
    return draw(st.sampled_from([_replaced(fields, "Signature", wrong), beside]))


@given(signed(), ORDERS)
def test_a_signed_json_request_is_carried_out(fields, order):
    assert sent(fields.json_frame(order))[0]


@given(signed())
def test_a_signed_binary_request_is_carried_out(fields):
    text = Fields([(name, java_text(value)) for name, value in fields.pairs], fields.body)
    assert sent(text.binary_frame())[0]


@given(st.one_of(damaged(), missigned()), ORDERS)
def test_a_damaged_json_request_is_carried_out_only_if_its_signature_fits(fields, order):
    done, client = sent(fields.json_frame(order))
    if not is_signed(fields.read, fields.body):
        assert not done
        assert [each.code for each in client.received] == [NO_PERMISSION]


@given(st.one_of(damaged(), missigned()))
def test_a_damaged_binary_request_is_carried_out_only_if_its_signature_fits(fields):
    text = Fields([(name, java_text(value)) for name, value in fields.pairs], fields.body)
    done, client = sent(text.binary_frame())
    if not is_signed(text.read, fields.body):
        assert not done
        assert [each.code for each in client.received] == [NO_PERMISSION]


@given(signed(), st.data())
def test_any_changed_byte_is_refused_or_does_not_matter(fields, data):
    """Change a byte behind the lengths of the frame. What the signature covers must not change."""
    frame = bytearray(data.draw(st.sampled_from([fields.json_frame(["code", "fields", "rest"]), fields.binary_frame()])))
    at = data.draw(st.integers(8, len(frame) - 1))
    frame[at] ^= data.draw(st.integers(1, 255))
    done, _ = sent(bytes(frame))
    if done:
        ((topic, body),) = script().node.sends
        assert (topic, body) == ("T", fields.body)


@given(signed(), st.integers(1, 200))
def test_a_request_cut_short_is_not_carried_out(fields, size):
    frame = fields.json_frame(["code", "fields", "rest"])
    head = frame[8 : len(frame) - len(fields.body)]
    assert not sent(raw_frame(head[:-size], fields.body))[0]


@given(signed(), signed())
def test_two_headers_in_one_frame(first, second):
    """JSON may name a key twice. The last extFields are those that are checked and used."""
    frame = first.json_frame(["code", "fields", "rest"])
    unsigned = json.dumps({**send_fields("Stolen"), "AccessKey": "app"})
    header = frame[8 : len(frame) - len(first.body)]
    last = header[:-1] + f',"extFields":{unsigned}}}'.encode()
    assert not sent(raw_frame(last, first.body))[0]
    before = b'{"extFields":' + unsigned.encode() + b"," + header[1:]
    assert sent(raw_frame(before, first.body))[0]
    assert script().node.sends == [("T", first.body)]


@given(signed(), st.sampled_from(["code", "flag", "opaque", "version", "remark"]), SCALARS)
def test_parts_that_are_not_signed_do_not_get_around_the_check(fields, part, value):
    frame = Fields([*fields.pairs, ("added", "")], fields.body[:-1] + b"x").json_frame(["code", "fields", "rest"])
    header = frame[8 : len(frame) - len(fields.body[:-1] + b"x")]
    sent_header = header[:-1] + f',"{part}":{json.dumps(value)}}}'.encode()
    if not is_signed(fields.read, fields.body[:-1] + b"x"):
        assert not sent(raw_frame(sent_header, fields.body[:-1] + b"x"))[0]


def test_lone_surrogates_are_no_reason_to_fail():
    for text in (b'"\\ud800"', b'"\\udfff x"', b'"\xed\xa0\x80"'):
        fields = json.dumps({**send_fields("T"), "AccessKey": "app", "Signature": "x"}).encode()
        header = b'{"code":310,"extFields":' + fields[:-1] + b',"odd":' + text + b'},"flag":0,"opaque":1,"version":479}'
        assert not sent(raw_frame(header))[0]
        assert not sent(raw_frame(header.replace(b'"odd"', text)))[0]


def test_refusals_are_in_the_audit_without_their_signature():
    fields = {**send_fields("T"), "AccessKey": "app", "Signature": "c2VjcmV0LXNpZ25hdHVyZQ=="}
    script().log.lines.clear()
    sent(write_command(CODE, fields))
    refusals = [line for line in script().log.lines if line[1] == "access-refused"]
    assert len(refusals) == 1
    assert "c2VjcmV0" not in str(refusals)
