"""Chooses the ports of a cluster's nodes.

A port is free if a socket can be bound to it in the same way as a node binds its own. Without
`any_port` a taken port is an error that names its owner. With it the node moves up by 10 until all
of its ports are free.

Another process may take a port after this check and before the node starts. `launch` then finds the
reason in the log of the node that ended, and chooses again.
"""

import socket
import time
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

from rmqkit.cluster.errors import ClusterError
from rmqkit.cluster.layout.description import PORT_STEP, NodePlan

PORT_MAX = 65535
#: how long to wait for the previous ports of a node to become free
OWN_PORT_WAIT_S = 3.0


def is_free(host: str, port: int) -> bool:
    """Whether a listener can be bound to `port` at `host` ("" for all addresses).

    Raises ClusterError for any other failure, such as an address that this machine does not have.
    """
    try:
        family, kind, protocol, _name, address = socket.getaddrinfo(
            host or None, port, 0, socket.SOCK_STREAM, 0, socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ClusterError(f"cannot bind to {host}: {error.strerror or error}") from None
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            # Do not listen: that would take the port from a node that is starting right now.
            probe.bind(address)
        except PermissionError:
            raise ClusterError(f"no permission to listen on port {port}; choose others with --base-port") from None
        except OSError as error:
            import errno

            if error.errno != errno.EADDRINUSE:
                raise ClusterError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
            return False
    return True


def wait_free(host: str, wanted: Sequence[int]) -> None:
    """Wait until ports that a node used before are free, because clients know the node there.

    Return after `OWN_PORT_WAIT_S` at the latest.
    """
    until_s = time.monotonic() + OWN_PORT_WAIT_S
    while not all(is_free(host, port) for port in wanted) and time.monotonic() < until_s:
        time.sleep(0.05)


def choose(
    plans: Iterable[NodePlan],
    wanted: Callable[[NodePlan], int],
    host: str,
    *,
    any_port: bool,
    reserved: Container[int] = (),
    free: Callable[[str, int], bool] = is_free,
    block_of: Callable[[NodePlan, int], tuple[int, ...]] = NodePlan.ports,
) -> dict[str, int]:
    """Choose the port of each node: `wanted(plan)` if all of the node's ports are free.

    Otherwise, with `any_port`, try the port 10 above, and so on. `reserved` are other ports of the
    cluster, which must not be chosen. `block_of` returns all ports that a node uses with a given
    main port. Raises ClusterError that names the owner of a taken port.
    """
    chosen: dict[str, int] = {}
    taken: set[int] = set()
    for plan in plans:
        port = wanted(plan)
        while True:
            block = block_of(plan, port)
            if max(block) > PORT_MAX:
                raise ClusterError(f"no free port is left for {plan.node}; choose others with --base-port")
            bad = [each for each in block if each in taken or each in reserved or not free(host, each)]
            if not bad:
                break
            if not any_port:
                raise ClusterError(taken_text(plan.node, bad[0]))
            port += PORT_STEP
        chosen[plan.node] = port
        taken.update(block)
    return chosen


def taken_text(node: str, port: int) -> str:
    """Return the error text for a port that a node needs and another process has."""
    owner = owner_of(port)
    held = f" by {owner}" if owner else ""
    return f"port {port}, which {node} needs, is taken{held}; stop it, or use --any-port or --base-port"


def _connections() -> list[Any]:
    """Return the listeners and connections of this machine; [] if this user may not list them."""
    import psutil

    try:
        return list(psutil.net_connections("tcp"))
    except (psutil.Error, OSError):
        return []


def listeners() -> dict[int, set[int]]:
    """Return the pids that listen on each port, without those that this user may not see."""
    import psutil

    found: dict[int, set[int]] = {}
    for each in _connections():
        if each.status == psutil.CONN_LISTEN and each.pid is not None:
            found.setdefault(each.laddr.port, set()).add(each.pid)
    return found


def owner_of(port: int) -> str:
    """Describe the process that listens on a port or uses it for a connection; "" if unknown."""
    import psutil

    holders = [each for each in _connections() if each.laddr and each.laddr.port == port]
    for holder in sorted(holders, key=lambda each: each.status != psutil.CONN_LISTEN):
        if holder.pid is not None:
            return process_in_words(holder.pid)
        if holder.status == psutil.CONN_LISTEN:
            return "a process of another user"
    return "a connection that is being closed" if holders else ""


def process_in_words(pid: int) -> str:
    """Describe a process: "node broker-a-0 of cluster default (pid 7)" or "pid 7 (its command)"."""
    import psutil

    from rmqkit.cluster.layout.home import NODE_FILE, NODES

    try:
        words = psutil.Process(pid).cmdline()
    except psutil.Error:
        return f"pid {pid}"
    found = [parts for word in words if len(parts := word.split("/")) > 4 and parts[-1] == NODE_FILE and parts[-3] == NODES]
    if found and "rmqkit.process" in words:
        nodes = ", ".join(parts[-2] for parts in found)
        return f"node{'s' if len(found) > 1 else ''} {nodes} of cluster {found[0][-4]} (pid {pid})"
    text = " ".join(" ".join(words).split())
    return f"pid {pid} ({text if len(text) <= 80 else text[:79] + '…'})"
