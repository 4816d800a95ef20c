"""The session: its settings, its workers, its leftovers, and its errors at the start."""

import gc
import os
import socket
import sys
from pathlib import Path

import pytest
from pyspark.conf import SparkConf

from rmqkit.errors import ConfigError, PeerUnreachable
from rmqkit.spark import session, sessions
from rmqkit.spark.java import Java
from rmqkit.spark.sessions import JAVA_OPTIONS, PUSHDOWN, SparkMissing

# --- without a JVM


def test_local_masters_get_addresses_and_folders_of_this_machine(monkeypatch):
    monkeypatch.delenv(sessions.GATEWAY, raising=False)
    found = sessions._settings({})
    assert found["spark.master"] == "local[*]"
    assert found["spark.driver.host"] == "127.0.0.1"
    assert found["spark.sql.session.timeZone"] == "UTC"
    assert Path(found["spark.sql.warehouse.dir"]).is_dir()
    assert found["spark.sql.warehouse.dir"] != os.path.abspath("spark-warehouse")
    remote = sessions._settings({"spark.master": "spark://host:7077"})
    assert remote["spark.master"] == "spark://host:7077"
    assert not {"spark.driver.host", "spark.sql.warehouse.dir", "spark.sql.shuffle.partitions"} & set(remote)


def test_given_settings_override_the_defaults(monkeypatch):
    monkeypatch.delenv(sessions.GATEWAY, raising=False)
    found = sessions._settings({"spark.ui.enabled": "true", "spark.master": "local[3]", JAVA_OPTIONS: "-Xss4m"})
    assert (found["spark.ui.enabled"], found["spark.master"]) == ("true", "local[3]")
    options = found[JAVA_OPTIONS].split()
    assert options[0] == "-Xss4m"
    assert options[1].startswith("-Dlog4j2.configurationFile=file:")
    assert options[1].endswith("log4j2.properties")
    mine = "-Dlog4j2.configurationFile=mine.properties"
    assert sessions._settings({JAVA_OPTIONS: mine})[JAVA_OPTIONS] == mine


def test_a_lean_jvm_does_not_check_byte_code(monkeypatch):
    monkeypatch.delenv(sessions.GATEWAY, raising=False)
    lean = {sessions.LEAN_KEY: "true"}
    assert sessions.UNCHECKED in sessions._settings({"spark.master": "local[2]", **lean})[JAVA_OPTIONS]
    assert sessions.UNCHECKED not in sessions._settings({"spark.master": "local[2]"})[JAVA_OPTIONS]
    assert sessions.UNCHECKED not in sessions._settings({"spark.master": "spark://host:7077", **lean})[JAVA_OPTIONS]


def test_the_environment_of_the_start_does_not_stay(monkeypatch):
    monkeypatch.setenv("SPARK_HOME", "mine")
    monkeypatch.delenv("NEW_NAME", raising=False)
    with sessions._environment({"SPARK_HOME": "other", "NEW_NAME": "x"}):
        assert (os.environ["SPARK_HOME"], os.environ["NEW_NAME"]) == ("other", "x")
    assert os.environ["SPARK_HOME"] == "mine"
    assert "NEW_NAME" not in os.environ


def test_the_master_of_spark_submit_stays(monkeypatch):
    monkeypatch.setenv(sessions.GATEWAY, "1")
    found = sessions._settings({})
    assert not {"spark.master", "spark.driver.host"} & set(found)
    assert sessions._settings({"spark.master": "yarn"})["spark.master"] == "yarn"


@pytest.mark.parametrize(
    ("master", "conf", "said"),
    [
        ("local[1]", {"spark.master": "yarn"}, r"two different masters: master=local\[1\] and spark.master=yarn"),
        ("sc://host", {}, "sc://host: Spark Connect is not supported"),
        (None, {"spark.remote": "sc://host"}, "spark.remote: Spark Connect is not supported"),
        ("local[two]", {}, r"master local\[two\]: must be local\[N\], spark://HOST:PORT, yarn or k8s://"),
        (None, {"spark.master": "spark:7077"}, "master spark:7077: must be"),
    ],
)
def test_masters_that_cannot_be(master, conf, said):
    with pytest.raises(ConfigError, match=said):
        session(master=master, conf=conf)


@pytest.mark.parametrize(
    "master", ["local", "local[2]", "local[*]", "local[2, 3]", "local-cluster[2,1,1024]", "yarn", "spark://h:1", "k8s://h"]
)
def test_masters_of_spark(master):
    sessions._check_master(master, {})


def test_a_standalone_master_is_reached_before_the_jvm_starts():
    with socket.create_server(("127.0.0.1", 0)) as master, socket.create_server(("127.0.0.1", 0)) as gone:
        there, away = (f"127.0.0.1:{each.getsockname()[1]}" for each in (master, gone))
        gone.close()
        sessions._check_reachable(f"spark://{away},{there}")
        said = rf"no Spark master answers at spark://{away},host \({away}: .*refused; host: .*\)"
        with pytest.raises(PeerUnreachable, match=said):
            sessions._check_reachable(f"spark://{away},host")


def test_a_driver_that_cannot_listen_has_a_session_all_the_same(spark, monkeypatch):
    def fails(_spark):
        raise OSError("cannot assign requested address")

    monkeypatch.setattr(sessions, "serve_pace", fails)
    assert session() is spark


def test_a_missing_pyspark_is_named(monkeypatch):
    monkeypatch.setattr(sessions, "find_spec", lambda name: None if name == "pyspark" else object())
    with pytest.raises(SparkMissing, match=r"^pyspark is not installed: pip install 'rmqkit\[spark\]'$"):
        session()


# PySpark does not close the pipe to a JVM that has ended.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_a_jvm_that_does_not_start_says_why(tmp_path, monkeypatch):
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'WARNING: Using incubator modules: x' >&2\necho 'no room for a heap' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(sessions, "find_java", lambda: Java(tmp_path, 17, "JAVA_HOME"))
    monkeypatch.setenv("JAVA_HOME", "")
    said = []
    monkeypatch.setattr(sys.stderr, "write", said.append)
    with pytest.raises(SparkMissing, match=r"Spark's JVM \(JAVA_HOME: .*\) did not start: .*no room for a heap"):
        sessions._launch(SparkConf(loadDefaults=False))
    assert "no room for a heap\n" in said
    assert not any("incubator" in line for line in said)
    gc.collect()


# --- with one


@pytest.mark.long
def test_workers_run_on_this_python_and_nothing_is_left_in_the_folder(spark, tmp_path, monkeypatch):
    from pyspark.sql.functions import udf

    monkeypatch.chdir(tmp_path)
    program = udf(lambda _number: sys.executable, "string")
    assert {row[0] for row in spark.range(4).select(program("id")).collect()} == {sys.executable}
    spark.sql("CREATE TABLE kept USING parquet AS SELECT 1 AS one")
    assert spark.table("kept").count() == 1
    spark.sql("DROP TABLE kept")
    assert os.listdir() == []


def test_a_session_that_runs_is_handed_out(spark):
    assert session() is spark
    spark.conf.set(PUSHDOWN, "false")
    assert session(pushdown=True, conf={"spark.sql.caseSensitive": "false"}).conf.get(PUSHDOWN) == "true"
    with pytest.raises(ConfigError, match=r"has a Spark session on local\[2\]: stop it to start one on local\[1\]"):
        session(master="local[1]")
