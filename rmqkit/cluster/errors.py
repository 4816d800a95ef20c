"""Errors of cluster commands.

`exit_code` is the exit code of the command that raises the error (see docs/cli.md).
"""

from rmqkit.errors import RmqkitError


class ClusterError(RmqkitError):
    """A command failed. The text is one line and says what to do; `details` are lines below it."""

    exit_code = 1

    def __init__(self, text: str, *details: str) -> None:
        super().__init__(text)
        self.details = details
        for line in details:
            self.add_note(line)  # a traceback shows them too


class UsageProblem(ClusterError):
    """A request is invalid, for instance because of a wrong name, number or selector."""

    exit_code = 2


class NoSuchCluster(ClusterError):
    """The cluster does not exist, or none of its nodes answers."""

    exit_code = 3
