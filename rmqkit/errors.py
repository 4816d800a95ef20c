"""Errors that several packages share, named after the party that caused them.

A status code from a peer is a result, not an exception.
"""


class RmqkitError(Exception):
    """Base of every exception that rmqkit raises on purpose."""


class RemoteProtocolError(RmqkitError):
    """A peer sent invalid bytes.

    Its connection is closed, or its request gets an error response.
    """


class CorruptRecord(RmqkitError):
    """Bytes that should be a message record are not one.

    Recovery, or the caller that read the record, decides what follows.
    """


class ClientError(RmqkitError):
    """Base of the exceptions of producers, consumers and Admin.

    `code` and `remark` are those of the response from a broker or name server, None and "" without
    a response. `maybe_stored` is true if the message or change may have been stored although the
    call failed.
    """

    def __init__(self, text: str, *, code: int | None = None, remark: str = "", maybe_stored: bool = False) -> None:
        super().__init__(text)
        self.code = code
        self.remark = remark
        self.maybe_stored = maybe_stored


class BrokerError(ClientError):
    """A peer answered with an error code.

    `retriable` is true for codes after which upstream's clients send again.
    """

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


class AccessDenied(BrokerError):
    """Access control of a broker or name server refused a request; nothing was done.

    `user` and `resource` are what the answer names, such as `orders-app` and `Topic:orders`, "" if
    it does not. `action` is the name of the request, such as PULL_MESSAGE.
    """

    def __init__(
        self,
        text: str,
        *,
        user: str,
        action: str,
        resource: str,
        code: int,
        remark: str = "",
        address: str = "",
        maybe_stored: bool = False,
    ) -> None:
        super().__init__(text, code=code, remark=remark, address=address, maybe_stored=maybe_stored)
        self.user = user
        self.action = action
        self.resource = resource


class PeerUnreachable(ClientError):
    """A peer did not answer. `kind` is connect, lost, timeout or closed."""

    def __init__(self, text: str, *, kind: str, address: str, maybe_stored: bool = False) -> None:
        super().__init__(text, maybe_stored=maybe_stored)
        self.kind = kind
        self.address = address


class SendFailed(ClientError):
    """A message was not acknowledged.

    `maybe_stored` is true if one of the tries may have stored it nevertheless.
    """

    def __init__(
        self, text: str, *, topic: str, tries: int, code: int | None = None, remark: str = "", maybe_stored: bool = False
    ) -> None:
        super().__init__(text, code=code, remark=remark, maybe_stored=maybe_stored)
        self.topic = topic
        self.tries = tries


class RequestTimeout(ClientError):
    """No consumer replied to a request in time.

    `sent` is true if the request was acknowledged; a consumer may then have processed it.
    """

    def __init__(self, text: str, *, topic: str, timeout_ms: int, sent: bool) -> None:
        super().__init__(text, maybe_stored=True)
        self.topic = topic
        self.timeout_ms = timeout_ms
        self.sent = sent


class NoRoute(ClientError):
    """No name server knows the topic, or the topic has no usable broker."""


class InvalidMessage(ClientError, ValueError):
    """A message, topic, group or setting that every broker would reject; nothing was sent."""


class ClientClosed(ClientError):
    """The producer, consumer or admin was closed, or its I/O thread has ended."""


class ClientForked(ClientError):
    """The object was created in the parent process; a forked child must create its own."""


class CannotStart(RmqkitError):
    """A problem that a node finds during its start and cannot work with, such as a damaged store.

    The text is one line that includes what to do.
    """


class ConfigError(RmqkitError):
    """A setting cannot be used: unknown key, value out of range, or a broken guarantee."""
