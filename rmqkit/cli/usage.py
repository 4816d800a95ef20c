"""The former name of `errors`, for commands of plug-ins."""

from rmqkit.cli.errors import Failed, Interrupted, Unreachable, UsageError

__all__ = ["Failed", "Interrupted", "Unreachable", "UsageError"]
