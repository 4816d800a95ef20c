"""The lean home has what the real one has, without some jars."""

import os

import pytest

from rmqkit.spark import spark_home
from rmqkit.spark.spark_home import lean_home


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    there = tmp_path / "spark"
    for name in ("jars/spark-core_2.13-4.3.0.jar", "jars/spark-mllib_2.13-4.3.0.jar", "bin/spark-submit"):
        (there / name).parent.mkdir(parents=True, exist_ok=True)
        (there / name).write_text(name)
    return there


def test_it_lacks_the_jars_that_are_left_out(home):
    lean = lean_home(home)
    assert lean is not None
    assert os.listdir(lean / "jars") == ["spark-core_2.13-4.3.0.jar"]
    assert (lean / "bin/spark-submit").read_text() == "bin/spark-submit"


def test_it_is_made_once_for_the_same_jars(home):
    lean = lean_home(home)
    assert lean_home(home) == lean
    (home / "jars/added.jar").touch()
    assert lean_home(home) != lean
    assert len(os.listdir(home.parent / "cache" / "rmqkit")) == 2


def test_two_processes_may_make_it_at_once(home):
    lean = lean_home(home)
    assert spark_home._made(lean, {"jars/late.jar": home / "late"}) == lean
    assert os.listdir(lean / "jars") == ["spark-core_2.13-4.3.0.jar"]


def test_there_is_none_where_it_cannot_be_made(home, monkeypatch):
    assert lean_home(home / "absent") is None
    (home.parent / "cache").write_text("a file")
    assert lean_home(home) is None
