"""Silences a listening socket: connection attempts are not answered, only counted.

On Linux a socket filter drops the packets that arrive for the listening socket. A peer's dial then
hangs, as it does when the network loses packets. Once the filter is gone it succeeds by itself,
because the peer's kernel repeats the SYN after 1, 2, 4 … s.

On other systems connections wait in the backlog: the peer's dial succeeds, but no reply comes.
"""

import ctypes
import select
import socket
import struct
import sys

_SO_ATTACH_FILTER, _SO_DETACH_FILTER, _SO_MEMINFO = 26, 27, 55
#: index in the SO_MEMINFO array: packets the socket has dropped (SK_MEMINFO_DROPS)
_DROPS = 8
#: byte offset in TCP_INFO (tcpi_unacked): on a listening socket, connections in its backlog
_BACKLOG_AT = 24


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint32))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.POINTER(_Instruction)))


class SilentListener:
    """A listening socket that is silent until `end`."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._drops_before = _drops(sock)
        self._has_filter = sys.platform == "linux" and _attach(sock)

    def knocks(self) -> int:
        """Return the number of connections in the backlog plus attempts that were dropped."""
        return _backlog(self._sock) + max(0, _drops(self._sock) - self._drops_before)

    def end(self) -> None:
        if self._has_filter:
            self._sock.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)


def _attach(sock: socket.socket) -> bool:
    """Attach a filter that drops every packet (one BPF instruction: `ret #0`).

    Return False if the kernel refuses it.
    """
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
