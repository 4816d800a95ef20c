"""Explains in one line why a port cannot be listened on, and which process holds it if known.

The owner of a port comes from /proc, so it is known on Linux only.
"""

import errno
import os

from rmqkit.errors import RmqkitError
from rmqkit.runtime.connection import Address

#: end of the text of PortTaken; `rmqkit.cluster.launch` finds a taken port by it in a node's log
TAKEN_ADVICE = "stop it or choose another port"
_STATE_LISTEN = "0A"


class CannotListen(RmqkitError):
    """A listening socket could not be opened, for instance for lack of permission."""


class PortTaken(RmqkitError):
    """Another socket uses `address`."""

    def __init__(self, address: Address, owner: str) -> None:
        """`owner` names its process as "pid 12 (java -server …)"; "" if unknown."""
        held = f" by {owner}" if owner else ""
        super().__init__(f"{address} is taken{held}; {TAKEN_ADVICE}")
        self.address = address


def listen_error(address: Address, error: OSError) -> RmqkitError:
    """Return the error to raise after `bind` or `listen` has failed with `error`."""
    if error.errno == errno.EADDRINUSE:
        return PortTaken(address, port_owner(address.port))
    if error.errno in (errno.EACCES, errno.EPERM):
        return CannotListen(f"no permission to listen on {address}; ports below 1024 are often reserved")
    if error.errno == errno.EADDRNOTAVAIL:
        return CannotListen(f"{address.host} is not an address of this machine")
    return CannotListen(f"cannot listen on {address}: {error.strerror or error}")


def port_owner(port: int) -> str:
    """Return the process that listens on a TCP port, as "pid 12 (java -server …)".

    Return "" if there is no /proc, or if this process may not see the owner.
    """
    inodes = _listening_inodes(port)
    if not inodes:
        return ""
    try:
        pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
    except OSError:
        return ""
    for pid in pids:
        folder = f"/proc/{pid}/fd"
        try:
            for name in os.listdir(folder):
                if os.readlink(f"{folder}/{name}") in inodes:
                    return f"pid {pid} ({_command(pid)})"
        except OSError:  # a process of another user, or one that has just ended
            continue
    return ""


def _listening_inodes(port: int) -> dict[str, None]:
    """Return the link targets in /proc ("socket:[123]") of the sockets that listen on the port."""
    found: dict[str, None] = {}
    suffix = f":{port:04X}"
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table, encoding="ascii") as lines:
                next(lines, "")
                for line in lines:
                    fields = line.split()
                    if fields[1].endswith(suffix) and fields[3] == _STATE_LISTEN:
                        found[f"socket:[{fields[9]}]"] = None
        except (OSError, IndexError):
            continue
    return found


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = " ".join(file.read(400).replace(b"\0", b" ").decode("utf-8", "replace").split())
    except OSError:
        return "?"
    return words if len(words) <= 80 else f"{words[:79]}…"
