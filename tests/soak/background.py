"""Runs work during an ingest: sends of new messages, and `rmqkit fail-master` on its cluster."""

import json
import os
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from rmqkit.cluster import Cluster
from tests.soak.ingesting import RMQKIT

#: the exit code of an inconclusive drill, and the maximum number of tries
INCONCLUSIVE, TRIES = 4, 3


class Background:
    """Threads that start after a number of batches of a query; `errors` are their exceptions."""

    def __init__(self, after: Mapping[int, Sequence[Callable[[], object]]]) -> None:
        self.batches = 0
        self.errors: list[BaseException] = []
        self._threads = {
            batch: [threading.Thread(target=self._run, args=(each,)) for each in of] for batch, of in after.items()
        }

    def on_batch(self, rows: int) -> None:
        self.batches += 1
        for thread in self._threads.get(self.batches, ()):
            thread.start()

    @property
    def is_done(self) -> bool:
        """Return whether all threads have started and ended."""
        return all(thread.ident and not thread.is_alive() for of in self._threads.values() for thread in of)

    def join(self) -> None:
        """Wait for all threads. Raises the first exception of a thread.

        Raises RuntimeError if the query had too few batches to start a thread.
        """
        for batch, threads in self._threads.items():
            for thread in threads:
                if thread.ident is None:
                    raise RuntimeError(f"the query ended after {self.batches} batches: nothing was done after {batch}")
                thread.join()
        if self.errors:
            raise self.errors[0]

    def _run(self, what: Callable[[], object]) -> None:
        try:
            what()
        except BaseException as error:
            self.errors.append(error)


class Drilled(NamedTuple):
    """The result of a drill; it is about the drill's own messages, not the ingested topic."""

    judgement: str
    facts: int
    proof: str


def drilled(cluster: Cluster, seconds: float) -> Drilled:
    """Run `rmqkit fail-master` on the cluster, with a fault of this many seconds.

    An inconclusive drill is repeated, since a busy machine can be the reason. Raises RuntimeError
    if the last try is not valid.
    """
    command = [RMQKIT, "fail-master", "--cluster", cluster.name, "--seconds", str(seconds), "--json"]
    environment = {**os.environ, "RMQKIT_HOME": str(cluster.home)}
    for _ in range(TRIES):
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode != INCONCLUSIVE:
            break
    if done.returncode:
        raise RuntimeError(f"fail-master ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    told = json.loads(done.stdout)
    return Drilled(told["judgement"], sum(each["finding"]["facts"] for each in told["promises"]), told["proof"])
