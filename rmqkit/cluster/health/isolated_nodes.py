"""Isolated nodes: queries a node's drill socket (`rmqkit.shell.faults.drill_socket`) and heals it.

A drill heals the nodes that it has isolated, unless it is killed. `cluster status` shows the nodes
left isolated, and `cluster resume` heals them. An isolation ends with the node's process.
"""

import json
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rmqkit.shell.faults.drill_socket import FOLDER_PREFIX, NAME, PATH_FILE, find

#: default timeout of one request
ANSWER_S = 5.0
#: timeout of a status request to a node that may be busy
LOOK_S = 0.5
ANSWER_SIZE_MAX = 4 << 20


def ask(folder: Path, request: Mapping[str, Any], timeout_s: float = ANSWER_S) -> dict[str, Any]:
    """Send a request to the drill socket of the node in `folder`. Return the answer.

    Raises FileNotFoundError if there is no drill socket, OSError, or ValueError if the answer is
    not valid JSON.
    """
    answer = bytearray()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(timeout_s)
        sock.connect(find(str(folder)))
        sock.sendall(json.dumps(request).encode() + b"\n")
        while not answer.endswith(b"\n") and len(answer) <= ANSWER_SIZE_MAX:
            data = sock.recv(65_536)
            if not data:
                break
            answer += data
    return dict(json.loads(answer))


def is_cut_off(folder: Path) -> bool:
    """Whether a drill isolates the node now. Return False if the node cannot be asked."""
    with suppress(OSError, ValueError):
        return bool(ask(folder, {"do": "status"}, LOOK_S).get("isolations"))
    return False


def heal(folder: Path) -> bool:
    """End all isolations of a node. Return whether there were any."""
    with suppress(OSError, ValueError):
        return bool(ask(folder, {"do": "heal"}).get("isolations"))
    return False


def remove_left(folder: Path) -> None:
    """Remove the socket that a killed node has left in a temporary folder, not its own folder."""
    if not (folder / PATH_FILE).is_file():
        return
    path = Path(find(str(folder)))
    # The file may contain any path. Remove only a socket in a folder that a node has created.
    if path.name == NAME and path.parent.name.startswith(FOLDER_PREFIX) and path.is_socket():
        with suppress(OSError):
            os.unlink(path)
            os.rmdir(path.parent)
