"""Whatever the fields and the body: what a client signs, a broker verifies, over both headers."""

from hypothesis import given
from hypothesis import strategies as st

from rmqkit.access.signature import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, Credentials, Key
from rmqkit.wire.remoting.frames import CODEC_JSON, CODEC_ROCKETMQ, FrameBuffer, frame
from rmqkit.wire.remoting.headers import decode_head, encode_request

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
#: Java reads an empty text of a binary header as absent, so clients write none
FULL = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
NAMES = FULL.filter(lambda name: name != SIGNATURE)


@given(st.dictionaries(NAMES, TEXT, max_size=8), st.binary(max_size=60), FULL, TEXT)
def test_what_is_signed_is_verified(fields, body, secret, token):
    signed = Credentials("user", secret, token).sign(fields, body)
    assert Key(secret).verify(signed, body)
    assert not Key(secret + "x").verify(signed, body)
    assert not Key(secret).verify(signed, body + b"x")
    added = {ACCESS_KEY, SECURITY_TOKEN, SIGNATURE}
    assert {name: signed[name] for name in signed.keys() - added} == {name: fields[name] for name in fields.keys() - added}


@given(st.dictionaries(NAMES, FULL, max_size=8), st.binary(max_size=60), st.sampled_from([CODEC_JSON, CODEC_ROCKETMQ]))
def test_it_survives_the_wire(fields, body, codec):
    signed = Credentials("user", "secret").sign(fields, body)
    header = encode_request(10, 1, signed, codec=codec)
    (cut,) = FrameBuffer().feed(frame(header, body, codec))
    arrived = decode_head(cut).ext_fields
    assert arrived == signed
    assert Key("secret").verify(arrived, cut.body)


@given(st.dictionaries(NAMES, FULL, min_size=1, max_size=8), st.data())
def test_a_changed_value_is_noticed(fields, data):
    signed = Credentials("user", "secret").sign(fields, b"body")
    name = data.draw(st.sampled_from(sorted(signed)))
    changed = {**signed, name: signed[name] + "x"}
    assert not Key("secret").verify(changed, b"body")
