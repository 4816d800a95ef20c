"""Resolves the `tls` argument of clients: whether they connect with TLS, and what they trust.

- `False`: plain text. `True`: TLS; servers need a certificate of an authority that the operating
  system trusts.
- A path: TLS, with the `tls.client.*` keys of a file in Java's property format, which Java's client
  reads as well (`-Dtls.config.file`).
- A mapping: TLS, with these keys: `{"tls.client.trustCertPath": "ca.pem"}`.
- `None`: what the environment variable RMQKIT_TLS says: `true`, `false`, or such a path. Without
  it, plain text.

The settings are imported only for TLS: that takes a third of the time in which a client starts.
"""

import os
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from rmqkit.errors import ConfigError

if TYPE_CHECKING:
    from rmqkit.config import TlsClientSettings
    from rmqkit.settings.table import Value

TLS_VARIABLE = "RMQKIT_TLS"
CLIENT_KEYS = "tls.client."
WORDS = {"true": True, "false": False, "": False}

Tls = bool | str | os.PathLike[str] | Mapping[str, object] | None


def choose_tls(tls: Tls) -> "TlsClientSettings | None":
    """Return the settings that a `tls` argument means, None for plain text. Raises ConfigError."""
    if tls is None:
        text = os.environ.get(TLS_VARIABLE, "").strip()
        tls = WORDS.get(text.lower(), text)
    if tls is False:
        return None
    from rmqkit.config import TlsClientSettings, from_values
    from rmqkit.settings.host import here
    from rmqkit.settings.sources import Setting, from_file
    from rmqkit.settings.table import show

    if tls is True:
        return TlsClientSettings(use_tls=True)
    if isinstance(tls, Mapping):
        settings = [Setting(key, value, " in tls") for key, value in tls.items()]
        if other := [each.key for each in settings if not each.key.startswith(CLIENT_KEYS)]:
            raise ConfigError(f"config: {other[0]!r} in tls: the keys of a client begin with {CLIENT_KEYS}")
    else:
        settings = [each for each in from_file(os.fspath(tls), "broker") if each.key.startswith(CLIENT_KEYS)]
    values = {each.key: show(cast("Value", each.value)) for each in settings}
    return from_values("broker", {"useTLS": True, **values}, host=here()).tls_client


def encrypted(plain: socket.socket, host: str, settings: "TlsClientSettings") -> socket.socket:
    """Return a connected, blocking socket with TLS, for clients without a loop.

    The handshake is subject to the timeout of `plain`. Raises OSError, ConfigError; `plain` is
    closed then.
    """
    from rmqkit.tls.contexts import client_context  # loads `ssl`

    try:
        return client_context(settings).wrap_socket(plain, server_hostname=host)
    except BaseException:
        plain.close()
        raise
