"""Errors that several packages share, named by whose mistake it was. A status answered by a peer is no exception."""


class RmqkitError(Exception):
    """Base of every error that rmqkit raises on purpose."""


class RemoteProtocolError(RmqkitError):
    """The peer's bytes are wrong: its connection is closed, or its call answered with an error."""


class CorruptRecord(RmqkitError):
    """Bytes that should be a message record are not one; recovery, or whoever asked for the record, decides."""
