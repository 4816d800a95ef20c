"""Isolated nodes: asks a node's drill socket (`rmqkit.shell.faults.drill_socket`) about isolation, and heals it.

A drill heals what it has cut off, but one that is killed cannot: `cluster status` says so then, and `cluster resume`
lets the node be reached again. Killed and stopped nodes forget it by themselves.
"""

import json
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rmqkit.shell.faults.drill_socket import FOLDER_PREFIX, NAME, PATH_FILE, find

ANSWER_S = 5.0
#: for a look at a node that may be busy
LOOK_S = 0.5
ANSWER_SIZE_MAX = 4 << 20


def ask(folder: Path, request: Mapping[str, Any], timeout_s: float = ANSWER_S) -> dict[str, Any]:
    """What the node in `folder` answers. Raises FileNotFoundError without a drill socket, OSError, ValueError."""
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
    """Whether a drill's isolation holds there now; False for a node that cannot be asked."""
    with suppress(OSError, ValueError):
        return bool(ask(folder, {"do": "status"}, LOOK_S).get("isolations"))
    return False


def heal(folder: Path) -> bool:
    """End all isolations of a node; whether there were any."""
    with suppress(OSError, ValueError):
        return bool(ask(folder, {"do": "heal"}).get("isolations"))
    return False


def remove_left(folder: Path) -> None:
    """Take away the socket that a killed node has left in a folder of its own, outside of its node folder."""
    if not (folder / PATH_FILE).is_file():
        return
    path = Path(find(str(folder)))
    # The file may say anything: only what the node itself has made goes.
    if path.name == NAME and path.parent.name.startswith(FOLDER_PREFIX) and path.is_socket():
        with suppress(OSError):
            os.unlink(path)
            os.rmdir(path.parent)
