"""A command ends in order, whatever its standard streams are."""

import json
import os
import subprocess
import sys

import pytest


@pytest.fixture
def rmqkit(tmp_path):
    """Run a shell line in which `rmqkit` is this package's command, with the output buffered."""

    def run(line, **environment):
        env = {**os.environ, "RMQKIT_HOME": str(tmp_path), **environment}
        env.pop("PYTHONUNBUFFERED", None)
        line = line.replace("rmqkit", f"'{sys.executable}' -m rmqkit")
        return subprocess.run(["sh", "-c", line], capture_output=True, env=env, timeout=60, check=False)

    return run


ALL, OTHERS = [">&-", "2>&-", "<&-", "<&- >&- 2>&-"], [("--help", 0), ("cluster down x", 3)]


@pytest.mark.parametrize(
    ("words", "code", "closed"),
    [
        *[("plugin list", 0, closed) for closed in ALL],
        *[(*other, ">&-") for other in OTHERS],
        *[pytest.param(*other, closed, marks=pytest.mark.long) for other in OTHERS for closed in ALL[1:]],
    ],
)
def test_a_closed_stream_changes_nothing_else(rmqkit, words, code, closed):
    done = rmqkit(f"rmqkit {words} {closed}")
    assert done.returncode == code
    assert b"Traceback" not in done.stderr
    if closed == ">&-":
        assert done.stderr.count(b"\n") == (1 if code else 0)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no full device")
def test_an_output_that_cannot_be_written_is_one_line_and_exit_code_1(rmqkit):
    done = rmqkit("rmqkit plugin list > /dev/full")
    assert done.returncode == 1
    assert done.stderr == b"error: cannot write the output: No space left on device\n"


def test_a_narrow_terminal_gets_escapes(rmqkit):
    done = rmqkit("rmqkit config explain spinPolls", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert b"0.7 \\xb5s each" in done.stdout


def test_json_on_a_narrow_terminal_is_json(capsys, monkeypatch):
    from rmqkit.cli import output

    class Narrow:
        encoding = "ISO-8859-1"

    monkeypatch.setattr(output.sys, "stdout", Narrow())
    text = output.dumps({"key": "schl\u00fcssel \N{KEY}"})
    assert text.isascii()
    assert json.loads(text) == {"key": "schl\u00fcssel \N{KEY}"}
