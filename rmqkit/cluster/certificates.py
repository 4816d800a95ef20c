"""Makes a certificate authority and certificates, with the library `cryptography`.

`cluster up --preset secure` uses it, and tests do. Keys are ECDSA P-256, or Ed25519 for the
simulator, whose runs need signatures of one length. They are written unencrypted, with mode 0600.
Every certificate names its hosts in its subject alternative names:
neither Java nor Python reads the common name for that.

The library is an extra, because nodes and clients do not need it: `pip install 'rmqkit[secure]'`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rmqkit.cluster.errors import ClusterError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

#: how long certificates are valid
VALID_DAYS = 3650
#: certificates are valid from this long ago, for machines whose clocks differ
CLOCKS_APART = timedelta(hours=1)
KEY_MODE = 0o600
#: set in every serial number: it then has 20 bytes, as certificates of one length need
SERIAL_TOP = 1 << 158


class Certificate(NamedTuple):
    """A certificate with its private key."""

    key: EllipticCurvePrivateKey | Ed25519PrivateKey
    certificate: x509.Certificate

    def write(self, cert_path: Path, key_path: Path) -> None:
        """Write both as PEM, the key (PKCS 8, which Java reads) with mode 0600."""
        from cryptography.hazmat.primitives import serialization

        text = self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        key_path.unlink(missing_ok=True)
        with open(os.open(key_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, KEY_MODE), "wb") as file:
            file.write(text)
        cert_path.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))


def check_library() -> None:
    """Raises ClusterError if the library is missing, with the command that installs it."""
    from importlib.util import find_spec

    if find_spec("cryptography") is None:
        raise ClusterError("certificates are made with the library cryptography: pip install 'rmqkit[secure]'")


def read(cert_path: Path, key_path: Path) -> Certificate:
    """Read what `Certificate.write` wrote. Raises ClusterError if it cannot be used."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    try:
        key = serialization.load_pem_private_key(key_path.read_bytes(), None)
        certificate = x509.load_pem_x509_certificate(cert_path.read_bytes())
    except (OSError, ValueError, TypeError) as error:
        raise ClusterError(f"cannot use {cert_path} and {key_path}: {error}") from None
    if not isinstance(key, EllipticCurvePrivateKey | Ed25519PrivateKey):
        raise ClusterError(f"cannot use {key_path}: it is not an elliptic curve key")
    return Certificate(key, certificate)


def make_authority(name: str, now: datetime, *, is_ed25519: bool = False) -> Certificate:
    """Return a new self-signed authority. `is_ed25519` is the type of its key, else it is P-256."""
    key = _new_key(is_ed25519=is_ed25519)
    return _issued(name, key, None, (), now - CLOCKS_APART, now + timedelta(days=VALID_DAYS))


def issue(
    authority: Certificate,
    name: str,
    hosts: Sequence[str],
    now: datetime,
    *,
    valid: tuple[timedelta, timedelta] = (-CLOCKS_APART, timedelta(days=VALID_DAYS)),
) -> Certificate:
    """Return a certificate for a server at `hosts` (names and addresses), or for a client.

    `valid` is from when until when, relative to `now`. The key has the type of the authority's.
    """
    key = _new_key(is_ed25519=_is_ed25519(authority.key))
    return _issued(name, key, authority, hosts, now + valid[0], now + valid[1])


def _new_key(*, is_ed25519: bool) -> EllipticCurvePrivateKey | Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    return ed25519.Ed25519PrivateKey.generate() if is_ed25519 else ec.generate_private_key(ec.SECP256R1())


def _is_ed25519(key: object) -> bool:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return isinstance(key, Ed25519PrivateKey)


def _issued(
    name: str,
    key: EllipticCurvePrivateKey | Ed25519PrivateKey,
    authority: Certificate | None,
    hosts: Sequence[str],
    begin: datetime,
    end: datetime,
) -> Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    own_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issuer, signing_key = (own_name, key) if authority is None else (authority.certificate.subject, authority.key)
    is_authority = authority is None
    builder = (
        x509.CertificateBuilder()
        .subject_name(own_name)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number() | SERIAL_TOP)
        .not_valid_before(begin)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None), critical=True)
        .add_extension(_key_usage(is_authority), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()), critical=False)
    )
    if not is_authority:
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    if hosts:
        names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
        builder = builder.add_extension(names, critical=False)
    # Ed25519 includes its hash.
    return Certificate(key, builder.sign(signing_key, None if _is_ed25519(signing_key) else hashes.SHA256()))


def _key_usage(is_authority: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)
