"""Runs the command line as users do: real processes, some in a real terminal (pexpect).

Every process gets the reading end of a pipe as its lifeline and passes it to the nodes that it
starts. So the nodes end with pytest, even if pytest is killed. Homes are temporary, and the system
chooses the ports.
"""

import contextlib
import io
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from unittest import mock

import pexpect.fdpexpect
import ptyprocess
import pytest

from rmqkit.cli import main
from tests.helpers import ports

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "rmqkit.cli.main"]
TIMEOUT_S = 40
#: variables that would change what commands do
OF_THE_USER = (
    "COLUMNS", "LINES", "NAMESRV_ADDR", "RMQKIT_TLS", "RMQKIT_ACCESS_FILE", "RMQKIT_ACCESS_KEY", "RMQKIT_SECRET_KEY",
    "ROCKETMQ_HOME",
)  # fmt: skip


@pytest.fixture(scope="session")
def lifeline():
    reading, writing = os.pipe()
    os.set_inheritable(reading, True)
    yield reading
    os.close(reading)
    os.close(writing)


def free_base():
    """Return a port after which the blocks of a cluster and of its metrics are free."""
    return ports.free_base(range(-2, 160))


class Shell:
    """Runs `rmqkit` in its own home."""

    def __init__(self, home, lifeline):
        self.home = home
        self.lifeline = lifeline
        self.environment = {
            **{key: value for key, value in os.environ.items() if key not in OF_THE_USER},
            "RMQKIT_HOME": str(home),
            "RMQKIT_LIFELINE_FD": str(lifeline),
            "PYTHONPATH": str(ROOT),
            "TERM": "xterm",
        }

    def run(self, *words, code=0, input=None, env=None, command=None):
        """Run a command; its exit code must be `code` (None: any). Return the finished process."""
        done = subprocess.run(
            [*(command or COMMAND), *map(str, words)],
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env={**self.environment, **(env or {})},
            pass_fds=(self.lifeline,),
            cwd=self.home,
        )
        assert code is None or done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def json(self, *words, **more):
        return json.loads(self.run(*words, "--json", **more).stdout)

    def lines(self, *words, **more):
        return [json.loads(line) for line in self.run(*words, "--json", **more).stdout.splitlines()]

    def start(self, *words, **more):
        return subprocess.Popen(
            [*COMMAND, *map(str, words)], env=self.environment, pass_fds=(self.lifeline,), cwd=self.home, text=True, **more
        )

    @contextlib.contextmanager
    def terminal(self, *words, columns=100):
        """Run a command in its own terminal; yield a screen to `expect` and `send`.

        The command's process is the screen's `.process`.
        """
        process = ptyprocess.PtyProcess.spawn(
            [*COMMAND, *map(str, words)],
            env=self.environment,
            cwd=str(self.home),
            dimensions=(40, columns),
            pass_fds=(self.lifeline,),
            # A script's background job ignores Ctrl-C, and child processes inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        screen = pexpect.fdpexpect.fdspawn(process.fd, timeout=TIMEOUT_S, encoding="utf-8")
        screen.process = process
        try:
            yield screen
        finally:
            process.close(force=True)

    def error(self, *words, code, **more):
        """Run a command that fails; return its only line on stderr."""
        done = self.run(*words, code=code, **more)
        lines = done.stderr.splitlines()
        assert len(lines) == 1, done.stderr
        assert lines[0].startswith("error: ")
        return lines[0]


@contextlib.contextmanager
def without_logs_of_others():
    """Keep warnings of clients that other tests left running out of a command's stderr."""
    others = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}
    handler = logging.lastResort

    def is_own(record):
        return record.thread not in others

    handler.addFilter(is_own)
    try:
        yield
    finally:
        handler.removeFilter(is_own)


class Inside(Shell):
    """Runs commands inside this process, which saves the start of an interpreter for each.

    `outside` runs them as real processes.
    """

    @property
    def outside(self):
        return Shell(self.home, self.lifeline)

    def run(self, *words, code=0, input=None, env=None):
        given = io.TextIOWrapper(io.BytesIO((input or "").encode()))
        out, err = (io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2))
        with (
            mock.patch.dict(os.environ, {**self.environment, **(env or {})}),
            mock.patch.object(sys, "stdin", given),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            contextlib.chdir(self.home),
            without_logs_of_others(),
        ):
            if not (env or {}).get("NAMESRV_ADDR"):
                os.environ.pop("NAMESRV_ADDR", None)
            done = main.run_command([str(word) for word in words])
        stdout, stderr = (each.buffer.getvalue().decode() for each in (out, err))
        assert code is None or done == code, f"{words}: {done}\n{stdout}\n{stderr}"
        return subprocess.CompletedProcess(words, done, stdout, stderr)


def make_shell(home, lifeline):
    home.mkdir(exist_ok=True)
    return Inside(home, lifeline)


@pytest.fixture
def shell(tmp_path, lifeline):
    """A home without clusters; clusters that a test starts end with it."""
    made = make_shell(tmp_path / "home", lifeline)
    yield made
    purge(made)


def purge(shell):
    for folder in sorted(shell.home.glob("*/nodes")):
        shell.run("cluster", "down", folder.parent.name, "--purge", "--grace", "5")


@pytest.fixture(scope="session")
def up(tmp_path_factory, lifeline):
    """A home with the running cluster `default`, for all tests that leave it intact."""
    made = make_shell(tmp_path_factory.mktemp("up") / "home", lifeline)
    made.outside.run("cluster", "up", "--any-port", "--base-port", free_base())
    yield made
    purge(made)
