"""Old name of `rmqkit.cli.errors`, kept for commands of plug-ins."""

from rmqkit.cli.errors import Failed, Interrupted, Unreachable, UsageError

__all__ = ["Failed", "Interrupted", "Unreachable", "UsageError"]
