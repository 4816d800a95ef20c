"""Errors that several packages share, named by whose mistake it was. A status answered by a peer is no exception."""


class RmqkitError(Exception):
    """Base of every error that rmqkit raises on purpose."""


class RemoteProtocolError(RmqkitError):
    """The peer's bytes are wrong: its connection is closed, or its call answered with an error."""


class CorruptRecord(RmqkitError):
    """Bytes that should be a message record are not one; recovery, or whoever asked for the record, decides."""


class ClientError(RmqkitError):
    """Base of what Producer, consumers and Admin raise.

    `code` and `remark` are a broker's or name server's answer, None and "" when there was none. `maybe_stored`: a message
    or a change may have been stored although this call failed.
    """

    def __init__(self, text: str, *, code: int | None = None, remark: str = "", maybe_stored: bool = False) -> None:
        super().__init__(text)
        self.code = code
        self.remark = remark
        self.maybe_stored = maybe_stored


class BrokerError(ClientError):
    """A peer answered with an error code. `retriable`: upstream's clients send again on this code."""

    def __init__(
        self,
        text: str,
        *,
        code: int,
        remark: str = "",
        address: str = "",
        retriable: bool = False,
        maybe_stored: bool = False,
    ) -> None:
        super().__init__(text, code=code, remark=remark, maybe_stored=maybe_stored)
        self.address = address
        self.retriable = retriable


class PeerUnreachable(ClientError):
    """A peer gave no answer. `kind` is connect, lost, timeout or closed."""

    def __init__(self, text: str, *, kind: str, address: str, maybe_stored: bool = False) -> None:
        super().__init__(text, maybe_stored=maybe_stored)
        self.kind = kind
        self.address = address


class SendFailed(ClientError):
    """A message was not acknowledged. `maybe_stored` tells whether one of the tries may have stored it all the same."""

    def __init__(
        self, text: str, *, topic: str, tries: int, code: int | None = None, remark: str = "", maybe_stored: bool = False
    ) -> None:
        super().__init__(text, code=code, remark=remark, maybe_stored=maybe_stored)
        self.topic = topic
        self.tries = tries


class RequestTimeout(ClientError):
    """Nobody replied to a request in time. `sent`: the request was acknowledged, and may have been worked on."""

    def __init__(self, text: str, *, topic: str, timeout_ms: int, sent: bool) -> None:
        super().__init__(text, maybe_stored=True)
        self.topic = topic
        self.timeout_ms = timeout_ms
        self.sent = sent


class NoRoute(ClientError):
    """No name server knows the topic, or no broker of it can take part."""


class InvalidMessage(ClientError, ValueError):
    """A message, topic, group or setting that no broker would take; nothing was sent."""


class ClientClosed(ClientError):
    """The producer, consumer or admin was closed, or its I/O thread ended."""


class ClientForked(ClientError):
    """The object was made in the parent of this process; a forked child makes its own."""


class CannotStart(RmqkitError):
    """What a node finds out after its start has begun and cannot work with (a damaged store): one line with what to do."""


class ConfigError(RmqkitError):
    """A setting that cannot be used: an unknown key, a value out of range, a promise it would break."""
