"""Signs requests as Apache's clients do, without the code under test."""

import hmac
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from tests.helpers.script import Client, Command

INNER = ("node", "inner-secret")
ROOT = ("root", "root-secret")
#: settings of a node with access control
SETTINGS = (
    "authenticationEnabled=true",
    "authorizationEnabled=true",
    'innerClientAuthenticationCredentials={"accessKey":"node","secretKey":"inner-secret"}',
    'initAuthenticationUser={"username":"root","password":"root-secret"}',
)


def signed(user: tuple[str, str], fields: Mapping[str, Any] | None = None, body: bytes = b"") -> dict[str, Any]:
    """Return the fields with AccessKey and Signature of (name, secret)."""
    whole = {**(fields or {}), "AccessKey": user[0]}
    content = "".join(str(whole[key]) for key in sorted(whole)).encode() + body
    return {**whole, "Signature": b64encode(hmac.digest(user[1].encode(), content, "sha1")).decode()}


def ask(
    client: Client,
    user: tuple[str, str] | None,
    code: int,
    fields: Mapping[str, Any] | None = None,
    body: bytes = b"",
    **head: Any,
) -> Command:
    """Send a request of a user, unsigned if None, and return the answer."""
    whole = dict(fields or {}) if user is None else signed(user, fields, body)
    return client.ask(code, whole, body, **head)
