"""A network namespace of the benchmark's own, in which the master's link can be cut.

`enter` starts the benchmark again in a new namespace, so that nothing here touches the machine's
own network. A `Link` then puts the master into a further namespace, joined by a pair of virtual
interfaces. While the link is cut, both ends discard every packet. As after a pulled cable,
connections stay open and dials hang. Needs Linux, and the right to create namespaces.
"""

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

#: addresses of all other processes, and of the master
OUTSIDE, INSIDE = "10.77.0.1", "10.77.0.2"
_NEAR, _FAR = "takeover-near", "takeover-far"
#: set in the namespace of the benchmark
_ENTERED = "RMQKIT_TAKEOVER_NETWORK"
_NEW = ("unshare", "--map-root-user", "--net", "--")


class NetworkError(RuntimeError):
    """A namespace or an interface could not be made. The text has the output of the command."""


def is_own() -> bool:
    """Return whether this process runs in a namespace made by `enter`."""
    return _ENTERED in os.environ


def enter(module: str, arguments: Sequence[str]) -> int:
    """Run the module in a new namespace; return its exit code. Raises NetworkError."""
    tried = subprocess.run([*_NEW, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        raise NetworkError(f"this user cannot create a network namespace: {tried.stderr.strip()}")
    command = [*_NEW, sys.executable, "-m", module, *arguments]
    return subprocess.run(command, env={**os.environ, _ENTERED: "1"}, check=False).returncode


def loopback_up() -> None:
    """Let processes of this namespace reach 127.0.0.1. Raises NetworkError."""
    _run("ip", "link", "set", "lo", "up")


class Link:
    """The master's namespace and its link. Raises NetworkError."""

    def __init__(self) -> None:
        if not is_own():
            raise NetworkError("only in a namespace of its own")
        loopback_up()
        # The namespace lives as long as this process, which ends when its input is closed.
        self._holder = subprocess.Popen([*_NEW[:1], "--net", "--", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._holder.stdin is not None
        assert self._holder.stdout is not None
        self._holder.stdin.write(b"ready\n")
        self._holder.stdin.flush()
        self._holder.stdout.readline()
        self.prefix = ("nsenter", "--target", str(self._holder.pid), "--net", "--")
        _run("ip", "link", "add", _NEAR, "type", "veth", "peer", "name", _FAR)
        _run("ip", "link", "set", _FAR, "netns", str(self._holder.pid))
        _run("ip", "address", "add", f"{OUTSIDE}/24", "dev", _NEAR)
        _run("ip", "link", "set", _NEAR, "up")
        for words in (
            ("link", "set", "lo", "up"),
            ("address", "add", f"{INSIDE}/24", "dev", _FAR),
            ("link", "set", _FAR, "up"),
        ):
            _run(*self.prefix, "ip", *words)
        # Fixed neighbours: without an answer to ARP, dials would fail at once instead of hanging.
        near, far = _hardware(()), _hardware(self.prefix)
        _run("ip", "neighbour", "replace", INSIDE, "lladdr", far, "dev", _NEAR, "nud", "permanent")
        _run(*self.prefix, "ip", "neighbour", "replace", OUTSIDE, "lladdr", near, "dev", _FAR, "nud", "permanent")

    def of_nodes(self) -> Mapping[str, Mapping[str, Any]]:
        """Return what each node of an `ActingCluster` needs for this network."""
        outside = {"host": OUTSIDE}
        master = {"host": INSIDE, "nameserver_host": OUTSIDE, "prefix": self.prefix}
        return {"ns": outside, "a0": master, "a1": outside, "b0": outside}

    def cut(self) -> None:
        for prefix, device in (((), _NEAR), (self.prefix, _FAR)):
            _run(*prefix, "tc", "qdisc", "add", "dev", device, "root", "pfifo", "limit", "0")

    def heal(self) -> None:
        for prefix, device in (((), _NEAR), (self.prefix, _FAR)):
            _run(*prefix, "tc", "qdisc", "del", "dev", device, "root")

    def close(self) -> None:
        """Remove the link and the master's namespace."""
        subprocess.run(["ip", "link", "delete", _NEAR], capture_output=True, check=False)
        assert self._holder.stdin is not None
        self._holder.stdin.close()
        self._holder.wait()


def _hardware(prefix: Sequence[str]) -> str:
    """Return the hardware address of the link's end on this side of `prefix`."""
    shown = _run(*prefix, "ip", "-o", "link", "show", "type", "veth")
    found = re.search(r"link/ether (\S+)", shown)
    if found is None:
        raise NetworkError(f"no hardware address in {shown!r}")
    return found[1]


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise NetworkError(f"the fault isolate needs {error.filename}") from None
    if done.returncode:
        raise NetworkError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
