"""Errors of lakes."""

from rmqkit.errors import RmqkitError


class LakeError(RmqkitError):
    """Raised when a lake cannot be read or written."""


class LakeMissing(LakeError):
    """Raised when there is no lake at a path."""


class LakeDamaged(LakeError):
    """Raised when a part of a lake or checkpoint is missing or invalid; the message names it."""


class LakeConflict(LakeError):
    """Raised when new rows contradict rows that the lake has; the message names them."""
