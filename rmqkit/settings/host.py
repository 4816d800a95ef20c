"""What defaults take from the machine: home folder, names, addresses.

The one module of the settings that asks the operating system.
"""

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

from rmqkit.errors import ConfigError

REFERENCE = re.compile(r"\$\{([^}]*)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The machine and user that a node runs as.

    The defaults are fixed, for nodes that no machine runs (tests, simulation).
    """

    home: str = "/home/rmqkit"
    folder: str = "/home/rmqkit"
    name: str = "broker"
    address: str = "127.0.0.1"
    environment: Mapping[str, str] = field(default_factory=dict)

    def lookup(self, name: str) -> str | None:
        """What `${name}` stands for, None when it is not set."""
        known = {
            "user.home": self.home,
            "user.dir": self.folder,
            "host.name": self.name,
            "host.address": self.address,
            "rocketmq.home.dir": self.environment.get("ROCKETMQ_HOME"),
        }
        return known[name] if name in known else self.environment.get(name.removeprefix("env."))


def here() -> Host:
    """This machine. The address is the one that packets to the outside leave from, 127.0.0.1 without a network."""
    environment = dict(os.environ)
    return Host(
        home=os.path.expanduser("~"),
        folder=os.getcwd(),
        name=socket.gethostname() or "DEFAULT_BROKER",
        address=outward_address(),
        environment=environment,
    )


def outward_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address for documentation: connecting a UDP socket sends nothing
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def expand(text: str, host: Host) -> str:
    """`text` with its `${...}` replaced; unknown ones become nothing. For defaults, which may lack their variable."""
    return REFERENCE.sub(lambda match: host.lookup(match[1]) or "", text)


def expand_path(text: str, host: Host) -> str:
    """A path as a user writes it, made absolute.

    It may hold `${user.home}`, `${ROCKETMQ_HOME}` and other variables, begin with `~/`, or be relative to the working
    folder.

    Raises ConfigError for a `${...}` that is not set.
    """

    def known(match: re.Match[str]) -> str:
        found = host.lookup(match[1])
        if found is None:
            raise ConfigError(f"config: ${{{match[1]}}} in {text!r} is not set")
        return found

    path = REFERENCE.sub(known, text)
    if path == "~" or path.startswith("~/"):
        path = host.home + path[1:]
    return os.path.normpath(os.path.join(host.folder, path)) if path else ""
