"""`rmqkit pipeline`: what it prints, its exit codes, its errors in one line, and its end by a signal."""

import json
import os
import signal
import sys

import pytest

from rmqkit import Message
from rmqkit.cli import main, pipeline_run
from rmqkit.cli.usage import FAILED, USAGE
from rmqkit.spark import sessions
from rmqkit.spark.pipelines.progress import Progress


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """Runs a command in an empty folder, in this process; gives (code, stdout, stderr)."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("RMQKIT_HOME", str(tmp_path))
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)

    def run(*words, code=0):
        done = main.run_command(["pipeline", *map(str, words)])
        told = capsys.readouterr()
        assert code in (None, done), told
        assert "Traceback" not in told.err
        return told

    return run


def send(own, topic, bodies):
    producer = own.producer()
    for body in bodies:
        producer.send(Message(topic, body))


# --- without Spark


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("ingst", "no such command: ingst; did you mean ingest?"),
        ("ingest --to x", "TOPIC"),
        ("ingest t", "--to"),
        ("ingest t --to x --option topic", "--option topic: must be KEY=VALUE"),
        ("ingest t --to x --since soon", "--since soon: must be a time"),
        ("ingest t --to x --namesrv nowhere", "not an address"),
        ("compact x --before soon", "--before soon: must be a time"),
        ("compact x --conf a", "--conf a: must be KEY=VALUE"),
    ],
)
def test_a_wrong_command_line_is_one_line(words, says, run):
    told = run(*words.split(), code=USAGE)
    assert told.out == ""
    assert told.err.startswith("error: ")
    assert told.err.count("\n") == 1
    assert says in told.err
    assert os.listdir() == []


def test_without_the_extra_it_is_said_how_to_get_it(run, monkeypatch):
    found = sessions.find_spec
    monkeypatch.setattr(sessions, "find_spec", lambda name: None if name in ("pyspark", "pyarrow") else found(name))
    for words in (("ingest", "t", "--to", "x"), ("compact", "x")):
        told = run(*words, code=FAILED)
        assert told.err == "error: pyspark and pyarrow is not installed: pip install 'rmqkit[spark]'\n"


class Said(Exception):
    pass


@pytest.mark.parametrize(
    ("text", "said", "code"),
    [
        (
            "[PYTHON_DATA_SOURCE_ERROR] Failed: Traceback (most recent call last):\n  File x\n"
            "rmqkit.errors.ConfigError: option tagz is not known, did you mean tags?\n",
            "option tagz is not known, did you mean tags?",
            2,
        ),
        (
            "Traceback\nrmqkit.errors.PeerUnreachable: no name server answers\n\n\tat org.apache",
            "no name server answers",
            3,
        ),
        ("Traceback\nrmqkit.spark.loss.DataLoss: queue 1 has no message\n", "queue 1 has no message", 1),
        ("Traceback\nrmqkit.spark.nowhere.Strange: so it was\n", "so it was", 1),
        (
            "\n[PATH_NOT_FOUND] Path does not exist: x. SQLSTATE: 42K03\n\tat y",
            "[PATH_NOT_FOUND] Path does not exist: x.",
            1,
        ),
        ("", "Said", 1),
    ],
)
def test_what_a_query_raised_is_one_line(text, said, code):
    failed = pipeline_run.plain(Said(text))
    assert (str(failed), failed.exit_code) == (said, code)


def test_a_signal_asks_for_the_end_and_a_second_one_does_not_wait(capsys):
    before = signal.getsignal(signal.SIGINT)
    with pipeline_run.Ending() as ending:
        assert not ending()
        signal.raise_signal(signal.SIGINT)
        assert ending()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    assert capsys.readouterr().err == "ending\n"
    ending.check(endless=True)
    with pytest.raises(pipeline_run.Interrupted):
        ending.check(endless=False)
    with pipeline_run.Ending() as ending:
        signal.raise_signal(signal.SIGTERM)
    with pytest.raises(pipeline_run.Interrupted):
        ending.check(endless=True)


def test_progress_on_a_terminal_is_a_bar(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with pipeline_run.Shown("ingest [bold]", json=False) as tell:
        tell(Progress(rows=30, rows_per_s=12.3, lag=70))
    told = capsys.readouterr()
    assert told.out == ""
    assert "ingest [bold]" in told.err
    assert "30 rows, 12/s, 70 to go" in told.err


# --- with Spark


def test_topics_go_into_a_lake_and_on_from_there(run, spark, own):
    topic = own.topic()
    send(own, topic, ["one", "two", "three"])
    words = ("ingest", topic, "--to", "lake", "--namesrv", own.namesrv)
    told = run(*words)
    assert told.out.startswith("3 messages in ")
    assert told.out.endswith("/here/lake\n")
    send(own, topic, ["four"])
    lines = [json.loads(line) for line in run(*words, "--json").out.splitlines()]
    assert [list(line) for line in lines] == [["progress"], ["done"]]
    assert (lines[0]["progress"]["rows"], lines[-1]["done"]["rows"]) == (1, 1)
    assert os.listdir() == ["lake"]
    assert run("compact", "lake").out == "nothing to do: every closed hour has as few files as it can\n"


def test_what_is_wrong_is_said_in_one_line(run, spark, own):
    topic = own.topic()
    send(own, topic, ["one"])
    known = ("ingest", topic, "--to", "lake", "--namesrv", own.namesrv)
    for words, code, says in (
        (("ingest", f"{topic}x", *known[2:]), FAILED, f"there is no topic {topic}x; did you mean {topic}?"),
        ((*known, "--option", "tagz=A"), USAGE, "option tagz is not known, did you mean tags?"),
        ((*known, "--master", "local[7]"), USAGE, "this process has a Spark session on local[2]"),
        (("compact", "nowhere"), FAILED, "there is no lake at"),
    ):
        told = run(*words, code=code)
        assert told.err.startswith(f"error: {says}"), told.err
        assert told.err.count("\n") == 1
        assert told.out == ""
