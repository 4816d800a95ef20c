"""Facts about the machine that defaults depend on: home folder, names, addresses.

This is the only module of the settings that queries the operating system.
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

    The defaults are constants, for nodes without a machine (tests, simulation).
    """

    home: str = "/home/rmqkit"
    folder: str = "/home/rmqkit"
    name: str = "broker"
    address: str = "127.0.0.1"
    environment: Mapping[str, str] = field(default_factory=dict)

    def lookup(self, name: str) -> str | None:
        """Return the value of `${name}`, None if it is not set."""
        known = {
            "user.home": self.home,
            "user.dir": self.folder,
            "host.name": self.name,
            "host.address": self.address,
            "rocketmq.home.dir": self.environment.get("ROCKETMQ_HOME"),
        }
        return known[name] if name in known else self.environment.get(name.removeprefix("env."))


def here() -> Host:
    """Return this machine.

    Its address is the source address of packets to other networks, 127.0.0.1 without a network.
    """
    environment = dict(os.environ)
    return Host(
        home=os.path.expanduser("~"),
        folder=os.getcwd(),
        name=socket.gethostname() or "DEFAULT_BROKER",
        address=outward_address(),
        environment=environment,
    )


def outward_address() -> str:
    """Return the source address of packets to other networks, 127.0.0.1 without a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # reserved for documentation; connecting a UDP socket sends nothing
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def expand(text: str, host: Host) -> str:
    """Return a default with its `${...}` replaced.

    Unknown variables become "", because a default may refer to an unset one.
    """
    return REFERENCE.sub(lambda match: host.lookup(match[1]) or "", text)


def expand_path(text: str, host: Host) -> str:
    """Return a user's path as an absolute path.

    It may contain `${user.home}`, `${ROCKETMQ_HOME}` and other variables, begin with `~/`, or be
    relative to the working folder. Raises ConfigError for a `${...}` that is not set.
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
