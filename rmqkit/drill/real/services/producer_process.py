"""The drill's side of a producer process that is killed (`killed_producer.py`).

    process = ProducerProcess(task)
    answer = process.send(order, timeout_s)     # HalfAnswer
    process.kill()                              # SIGKILL, and waits until the process is gone

A process whose answer does not arrive in time is of no more use: its pipe would answer late.
"""

import select
import subprocess
import sys

import msgspec

from rmqkit.cluster.processes import node_environment
from rmqkit.drill.real.services.killed_producer import HalfAnswer, HalfOrder, ProducerTask

#: the module that the process runs
PROGRAM = "rmqkit.drill.real.services.killed_producer"
KILL_WAIT_S = 5.0


class ProducerProcess:
    """One producer process. It starts at once; `send` waits until it has started."""

    def __init__(self, task: ProducerTask) -> None:
        """Start the process. Raises OSError if it cannot be started."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", PROGRAM, msgspec.json.encode(task).decode()],
            env=node_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            bufsize=0,
        )

    def send(self, order: HalfOrder, timeout_s: float) -> HalfAnswer:
        """Let the process send a half, and return how that ended.

        Without an answer in time, or if the process is gone, the outcome of the send is unknown.
        """
        unknown = HalfAnswer(key=order.key, error="the producer process gave no answer", maybe_stored=True)
        sending, receiving = self._process.stdin, self._process.stdout
        assert sending is not None
        assert receiving is not None
        try:
            sending.write(msgspec.json.encode(order) + b"\n")
        except (OSError, ValueError):  # the process is gone, or `kill` has closed the pipe
            return unknown
        if not select.select([receiving], [], [], timeout_s)[0]:
            return unknown
        line = receiving.readline()
        return msgspec.json.decode(line, type=HalfAnswer) if line.endswith(b"\n") else unknown

    def kill(self) -> None:
        """End the process with SIGKILL. Safe to call twice."""
        self._process.kill()
        self._process.wait(KILL_WAIT_S)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
