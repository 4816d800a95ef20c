"""Signatures: Apache's test vector, the order and texts of Java, and what is a wrong signature."""

import hashlib
import hmac
from base64 import b64encode

import pytest

from rmqkit.access.signature import Credentials, Key, signed_content

FIELDS = {"b": "2", "a": "1", "queueId": "0"}


def test_apaches_vector():
    """`AclSignerTest.calSignatureByteTest`: data and key."""
    assert Key("12345678").sign(b"RocketMQ") == b"IUc8rrO/0gDch8CjObLQsW2rsiA="


@pytest.mark.parametrize("secret", ["", "k", "k" * 64, "k" * 65, "k" * 1000, "schlüssel"])
@pytest.mark.parametrize("body", [b"", b"body", b"x" * 70_000])
def test_a_signature_is_hmac_sha1(secret, body):
    expected = hmac.new(secret.encode(), b"content" + body, hashlib.sha1).digest()
    assert Key(secret).sign(b"content", body) == b64encode(expected)


def test_values_are_joined_in_the_order_of_their_keys_without_the_signature():
    fields = {"topic": "T", "AccessKey": "ak", "b": "2", "Signature": "old", "a": "1", "_u": "x"}
    assert signed_content(fields) == b"akx12T"


def test_the_order_of_keys_is_that_of_utf16_units():
    """Java's String.compareTo puts a surrogate pair before U+FFFD; code points order otherwise."""
    assert signed_content({"\ufffd": "late", "\U0001f600": "early"}) == b"earlylate"


def test_json_values_are_signed_as_java_reads_them():
    """fastjson reads numbers and booleans of a Map<String, String> as text."""
    assert signed_content({"a": 0, "b": True, "c": False, "d": "x", "e": None, "f": -5}) == b"0truefalsexnull-5"


def test_text_is_signed_in_utf8():
    assert signed_content({"a": "ü€", "b": ""}) == "ü€".encode()


def test_a_signed_request_is_verified_with_the_same_secret_only():
    signed = Credentials("user", "secret").sign(FIELDS, b"body")
    assert signed["AccessKey"] == "user"
    assert FIELDS.items() <= signed.items()
    assert Key("secret").verify(signed, b"body")
    assert not Key("Secret").verify(signed, b"body")
    assert not Key("").verify(signed, b"body")


def test_a_request_without_fields_can_be_signed():
    signed = Credentials("user", "secret").sign(None)
    assert signed.keys() == {"AccessKey", "Signature"}
    assert Key("secret").verify(signed, b"")


def test_the_fields_of_the_caller_stay_as_they_are():
    fields = dict(FIELDS)
    Credentials("user", "secret").sign(fields)
    assert fields == FIELDS


def test_a_command_signed_again_does_not_sign_its_old_signature():
    credentials = Credentials("user", "secret")
    once = credentials.sign(FIELDS, b"body")
    assert credentials.sign(once, b"body") == once


def test_a_security_token_is_sent_and_signed():
    signed = Credentials("user", "secret", "token").sign(FIELDS)
    assert signed["SecurityToken"] == "token"
    assert Key("secret").verify(signed, b"")
    assert not Key("secret").verify({**signed, "SecurityToken": "other"}, b"")


def test_the_order_of_fields_does_not_matter():
    signed = Credentials("user", "secret").sign(FIELDS, b"body")
    assert Key("secret").verify(dict(reversed(signed.items())), b"body")


@pytest.mark.parametrize("change", [{"queueId": "1"}, {"a": ""}, {"AccessKey": "other"}, {"unknown": "field"}])
def test_a_changed_or_added_field_is_found(change):
    signed = Credentials("user", "secret").sign(FIELDS, b"body")
    assert not Key("secret").verify({**signed, **change}, b"body")


def test_a_changed_body_is_found():
    signed = Credentials("user", "secret").sign(FIELDS, b"body")
    assert not Key("secret").verify(signed, b"bodY")
    assert not Key("secret").verify(signed, b"")


@pytest.mark.parametrize(
    "wrong",
    [None, "", "x", 5, True, [], {}, "ü" * 28, "\ud800", "=" * 28, " ", "A" * 100_000],
    ids=lambda each: repr(each)[:12],
)
def test_a_value_that_is_no_signature_is_wrong(wrong):
    signed = Credentials("user", "secret").sign(FIELDS)
    assert not Key("secret").verify({**signed, "Signature": wrong}, b"")


def test_a_truncated_or_padded_signature_is_wrong():
    signed = Credentials("user", "secret").sign(FIELDS)
    text = signed["Signature"]
    for wrong in (*(text[:size] for size in range(len(text))), text + " ", text + "=", text.lower(), text.rstrip("=")):
        assert not Key("secret").verify({**signed, "Signature": wrong}, b"")


def test_a_missing_signature_is_wrong():
    signed = Credentials("user", "secret").sign(FIELDS)
    del signed["Signature"]
    assert not Key("secret").verify(signed, b"")


def test_no_text_shows_the_secret():
    credentials = Credentials("user", "s3cr3t", "t0ken")
    assert repr(credentials) == "Credentials('user')"
    assert "s3cr3t" not in repr(Key("s3cr3t"))
