"""The process from which Spark forks its Python workers, with the workers' imports done.

Spark starts `python -m pyspark.daemon`, which forks a process for each task that runs at the same
time. Each of them would import PySpark's worker, numpy, PyArrow and rmqkit again, half a second
each. Sessions with a local master start this module instead (`spark.python.daemon.module`). It
imports them once and then does what PySpark's module does.

PySpark imports nothing before the fork, since a library that starts threads is not safe to fork.
The two that would start some do not here: numpy's threads are limited by OMP_NUM_THREADS, which
Spark sets to the cores of a task, and PyArrow's thread of jemalloc is switched off.

A worker whose JVM has ended has nobody to answer. PySpark's module would print a traceback then,
for instance after Ctrl-C in a pipeline; here the worker just ends.
"""

import os
import socket

from pyspark import daemon

#: Spark's setting of the module that starts Python workers.
MODULE_KEY = "spark.python.daemon.module"
#: What tasks of rmqkit import: PySpark's worker, and the modules that read topics and write files.
IMPORTED = (
    "pyspark.worker",
    "pyspark_rmqkit",
    "rmqkit.spark.source.stream",
    "rmqkit.spark.source.topic_reader",
    "rmqkit.spark.delta.lake_files",
)


#: What PySpark calls in a forked process: it serves a task and returns the exit code.
_serve = daemon.worker


def serve_task(sock: socket.socket, authenticated: bool) -> int:
    """Do what PySpark's function does. Return 1 if the JVM has closed the connection."""
    try:
        return int(_serve(sock, authenticated))
    except (BrokenPipeError, ConnectionResetError):
        return 1


def main() -> None:
    from importlib import import_module

    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    for name in IMPORTED:
        import_module(name)
    daemon.worker = serve_task
    daemon.manager()


if __name__ == "__main__":
    main()
