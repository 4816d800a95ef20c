"""Stands in for Python where Spark starts one: asks a fork server (`fork_server`) for a process.

    python -I -S fork_client.py SOCKET PYTHON WORDS...

Spark runs it by a script in place of `python WORDS...` and knows its process: it reads and writes
its standard streams, waits for its end, and may terminate it. So the client passes its streams to
the server, waits for the process that the server forks, and ends with its exit code. If it is
terminated before, the server terminates that process. If the server is gone or declines, the client
becomes `python WORDS...`.

The client imports as little as it can, since Spark waits for it. It does not import rmqkit.
"""

import marshal
import os
import socket
import sys

#: What the server sends once it has forked; the next byte is the exit code.
FORKED = b"+"


def main() -> None:
    path, python, *words = sys.argv[1:]
    if words[:1] == ["-m"]:
        request = marshal.dumps((words[1:], dict(os.environ), os.getcwd()))
        try:
            with socket.socket(socket.AF_UNIX) as link:
                link.connect(path)
                socket.send_fds(link, [len(request).to_bytes(4, "big")], [0, 1, 2])
                link.sendall(request)
                if link.recv(1) == FORKED:
                    _wait(link)
        except OSError:
            pass
    os.execv(python, [python, *words])


def _wait(link: socket.socket) -> None:
    # The ends of the pipes to Spark must close when the forked process ends.
    for stream in range(3):
        os.close(stream)
    try:
        code = link.recv(1)
    except OSError:
        code = b""
    os._exit(code[0] if code else 1)


if __name__ == "__main__":
    main()
