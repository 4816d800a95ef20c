"""Signatures of requests, as Apache's clients write and its brokers check them.

A signed request has two more extFields, `AccessKey` and `Signature`, and three with a
`SecurityToken`. The signature is the Base64 text of HMAC-SHA1 over the values of all extFields but
`Signature`, in the order of their keys, followed by the body. Code, opaque, flag, version and the
names of the fields are not signed, and nothing makes a signature unique: whoever reads a request
can send it again. Only TLS prevents that.

The server signs the fields that arrived, including those that it does not know.

Source: `client/.../acl/common/{AclClientRPCHook,AclUtils,AclSigner}.java`.
"""

import hmac
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha1
from typing import Any

import msgspec

ACCESS_KEY = "AccessKey"
SIGNATURE = "Signature"
SECURITY_TOKEN = "SecurityToken"
#: bytes in a block of SHA-1 (RFC 2104); a longer secret is replaced by its digest
_BLOCK_SIZE = 64
_INNER = bytes(each ^ 0x36 for each in range(256))
_OUTER = bytes(each ^ 0x5C for each in range(256))


class Key:
    """The secret of one user, prepared for HMAC-SHA1.

    Keeps the states of the two hashes after the padded secret, and copies them for each signature:
    3.6 µs instead of 5 µs for 300 bytes. Its text never shows the secret.
    """

    __slots__ = ("_inner", "_outer")

    def __init__(self, secret: str) -> None:
        raw = secret.encode()
        if len(raw) > _BLOCK_SIZE:
            raw = sha1(raw, usedforsecurity=False).digest()
        padded = raw.ljust(_BLOCK_SIZE, b"\0")
        self._inner = sha1(padded.translate(_INNER), usedforsecurity=False)
        self._outer = sha1(padded.translate(_OUTER), usedforsecurity=False)

    def sign(self, content: bytes, body: bytes = b"") -> bytes:
        """Return the Base64 text of HMAC-SHA1 over content and body."""
        inner = self._inner.copy()
        inner.update(content)
        if body:
            inner.update(body)
        outer = self._outer.copy()
        outer.update(inner.digest())
        return b64encode(outer.digest())

    def verify(self, fields: Mapping[str, Any], body: bytes) -> bool:
        """Return whether `fields` have the right `Signature` of this key over `fields` and `body`.

        Compares in constant time. Any value that is no text, or has other characters than ASCII,
        is a wrong signature.
        """
        signature = fields.get(SIGNATURE)
        if not isinstance(signature, str) or not signature.isascii():
            return False
        return hmac.compare_digest(self.sign(signed_content(fields), body), signature.encode())


class Credentials:
    """An access key and its secret, with which a client or node signs its requests.

    Its text shows the access key only.
    """

    __slots__ = ("_fixed", "_key", "access_key")

    def __init__(self, access_key: str, secret_key: str, security_token: str = "") -> None:
        self.access_key = access_key
        self._key = Key(secret_key)
        self._fixed = {ACCESS_KEY: access_key}
        if security_token:
            self._fixed[SECURITY_TOKEN] = security_token

    def sign(self, fields: Mapping[str, str] | None, body: bytes = b"") -> dict[str, str]:
        """Return the fields with `AccessKey`, `SecurityToken` if there is one, and `Signature`."""
        signed = {**fields, **self._fixed} if fields else self._fixed.copy()
        signed[SIGNATURE] = self._key.sign(signed_content(signed), body).decode()
        return signed

    def __repr__(self) -> str:
        return f"Credentials({self.access_key!r})"


def signed_content(fields: Mapping[str, Any]) -> bytes:
    """Return the values of all fields but `Signature`, joined in the order of Java's strings.

    Numbers and booleans are signed as the texts that Java reads them as.
    """
    keys = sorted(fields)
    # Java compares UTF-16 units, Python code points: these differ beyond the basic plane only.
    if keys and not "".join(keys).isascii():
        keys.sort(key=_utf16)
    try:
        text = "".join([fields[key] for key in keys if key != SIGNATURE])
    except TypeError:
        text = "".join([_java_text(fields[key]) for key in keys if key != SIGNATURE])
    return text.encode("utf-8", "surrogatepass")


def _utf16(key: str) -> bytes:
    return key.encode("utf-16-be", "surrogatepass")


def _java_text(value: object) -> str:
    """Return the text of a JSON value in a map of Java's strings; `StringBuilder` writes "null"."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
