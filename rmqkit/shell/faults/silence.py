"""A listener that is cut off: connections that knock are neither accepted nor answered, and are counted.

Where the kernel can (Linux) a socket filter drops what arrives for the listening socket, so that a peer's dial hangs as it
does when packets vanish, and goes through by itself once the filter is gone (SYNs are sent again after 1, 2, 4 … s).
Elsewhere connections wait in the backlog: the peer's dial succeeds and nobody answers.
"""

import ctypes
import select
import socket
import struct
import sys

_SO_ATTACH_FILTER, _SO_DETACH_FILTER, _SO_MEMINFO = 26, 27, 55
#: of SO_MEMINFO: packets the socket has dropped
_DROPS = 8
#: of TCP_INFO on a listening socket: connections in its backlog
_BACKLOG_AT = 24


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint32))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.POINTER(_Instruction)))


class Silence:
    """A silenced listening socket, until `end`."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._drops_before = _drops(sock)
        self._has_filter = sys.platform == "linux" and _attach(sock)

    def knocks(self) -> int:
        """Connections that wait, and tries that got no answer."""
        return _backlog(self._sock) + max(0, _drops(self._sock) - self._drops_before)

    def end(self) -> None:
        if self._has_filter:
            self._sock.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)


def _attach(sock: socket.socket) -> bool:
    """Keep no byte of any packet (one BPF instruction: `ret #0`)."""
    instructions = (_Instruction * 1)(_Instruction(6, 0, 0, 0))
    program = _Program(1, ctypes.cast(instructions, ctypes.POINTER(_Instruction)))
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, bytes(program))
    except OSError:
        return False
    return True


def _drops(sock: socket.socket) -> int:
    if sys.platform != "linux":
        return 0
    try:
        found = sock.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, 4 * (_DROPS + 1))
        return int(struct.unpack_from("I", found, 4 * _DROPS)[0])
    except (OSError, struct.error):
        return 0


def _backlog(sock: socket.socket) -> int:
    if sys.platform == "linux":
        try:
            return int(struct.unpack_from("I", sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), _BACKLOG_AT)[0])
        except (OSError, struct.error):
            pass
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLIN)
    return len(poll.poll(0))
