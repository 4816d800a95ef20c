"""What can go wrong with a cluster, by exit code of the command that met it (`exit_code`; see "The command line")."""

from rmqkit.errors import RmqkitError


class ClusterError(RmqkitError):
    """The thing that was asked for failed. The text is one line, what to do included; `details` are lines below it."""

    exit_code = 1

    def __init__(self, text: str, *details: str) -> None:
        super().__init__(text)
        self.details = details
        for line in details:
            self.add_note(line)  # a traceback shows them too


class UsageProblem(ClusterError):
    """What was asked for makes no sense: a name, a number or a selector that cannot be."""

    exit_code = 2


class NoSuchCluster(ClusterError):
    """There is no such cluster, or nothing of it answers."""

    exit_code = 3
