"""The package for executors: what is in it, what it fits, and the settings of a session with it."""

import os
import re
import subprocess
import sys
import tarfile
import types
from importlib import metadata
from pathlib import Path

import msgspec
import pytest

from rmqkit.errors import ConfigError
from rmqkit.spark import package, sessions
from rmqkit.spark.package import FOLDER, MARK, PackageFailed, PackageMark


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """`prepare_driver` changes the environment of this process."""
    for name in ("PATH", "PYTHONPATH", "PYSPARK_PYTHON"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.delenv(sessions.GATEWAY, raising=False)


@pytest.fixture(scope="module")
def small():
    """Packages without pyarrow, which is large, and compressed quickly."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(package, "LEVEL", 1)
        patched.setattr(package, "NEEDED", ("msgspec",))
        patched.setattr(package, "OPTIONAL", ("no-such-distribution",))
        yield


@pytest.fixture(scope="module")
def made(small, tmp_path_factory):
    return package.build(tmp_path_factory.mktemp("package") / "made.tar.gz")


def test_a_bare_python_runs_from_the_package(made, tmp_path):
    """The unpacked folder is all that a Python without packages needs, entry points included."""
    with tarfile.open(made.path) as archive:
        # Python 3.11.3 and older extract without a filter.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(tmp_path / "there")
    asked = (
        "import rmqkit.api, rmqkit.client.message, msgspec, sys; from importlib.metadata import entry_points\n"
        "print(rmqkit.__file__, msgspec.__file__, len(entry_points(group='rmqkit')) > 2, sys.prefix == sys.base_prefix)"
    )
    base = getattr(sys, "_base_executable", sys.executable)
    done = subprocess.run(
        [base, "-S", "-c", asked],
        env={"PYTHONPATH": str(tmp_path / "there")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ours, theirs, has_points, is_bare = done.stdout.split()
    assert ours == f"{tmp_path}/there/rmqkit/__init__.py"
    assert theirs.startswith(f"{tmp_path}/there/msgspec/")
    assert (has_points, is_bare) == ("True", "True")


def test_it_has_what_executors_import_and_no_more(made):
    with tarfile.open(made.path) as archive:
        entries = archive.getmembers()
    names = [each.name for each in entries]
    assert names[0] == MARK
    assert names[1:] == sorted(set(names[1:]))
    assert {"pyspark_rmqkit/__init__.py", "pyspark_rmqkit_store/__init__.py", "rmqkit/spark/columns.py"} <= set(names)
    assert not [name for name in names if name.startswith("/") or ".." in name or "__pycache__" in name]
    assert not [name for name in names if name.startswith(("pyspark/", "tests/", "pyarrow/"))]
    assert {each.mtime for each in entries} == {0}
    assert f"rmqkit {metadata.version('rmqkit')}" in made.distributions
    assert f"msgspec {metadata.version('msgspec')}" in made.distributions


def test_two_builds_are_equal(made, tmp_path):
    again = package.build(tmp_path / "again.tar.gz")
    assert (tmp_path / "again.tar.gz").read_bytes() == Path(made.path).read_bytes()
    assert again.bytes == made.bytes
    assert [each.name for each in tmp_path.iterdir()] == ["again.tar.gz"]


def test_a_distribution_that_is_missing_is_named(monkeypatch, small, tmp_path):
    monkeypatch.setattr(package, "NEEDED", ("no-such-distribution",))
    with pytest.raises(PackageFailed, match=r"no-such-distribution is not installed: pip install 'rmqkit\[spark\]'"):
        package.build(tmp_path / "made.tar.gz")
    listless = types.SimpleNamespace(name="odd", version="1", files=None, requires=[])
    monkeypatch.setattr(package, "distributions", lambda: [listless])
    with pytest.raises(PackageFailed, match="odd was not installed by pip: it does not list its files"):
        package.build(tmp_path / "made.tar.gz")
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_no_package_is_refused(tmp_path):
    missing, text, other = tmp_path / "missing", tmp_path / "text", tmp_path / "other.tar.gz"
    text.write_text("no archive")
    with tarfile.open(other, "w:gz") as archive:
        archive.add(text, "text")
    for path, said in (
        (missing, "does not exist; make it with `rmqkit pipeline package`"),
        (text, "cannot be read"),
        (tmp_path, "cannot be read"),
        (other, "is no package of `rmqkit pipeline package`"),
    ):
        with pytest.raises(ConfigError, match=f"^spark.rmqkit.package: {path} {said}"):
            package.check(path)


@pytest.mark.parametrize("name", PackageMark.__struct_fields__)
def test_a_package_for_something_else_is_refused(made, monkeypatch, name):
    own = package.own_mark()
    package.check(made.path)
    monkeypatch.setattr(package, "own_mark", lambda: msgspec.structs.replace(own, **{name: "other"}))
    said = f"was made for {name} {getattr(own, name)}, and this is other: make it again"
    with pytest.raises(ConfigError, match=re.escape(said)):
        package.check(made.path)


def test_a_session_sends_the_package_to_its_executors(made):
    given = {
        package.PACKAGE_KEY: made.path,
        package.ARCHIVES_KEY: "mine.zip#mine",
        package.PATH_KEY: "./mine",
    }
    found = sessions._settings({"spark.master": "spark://host:7077", **given})
    assert found[package.ARCHIVES_KEY] == f"{made.path}#{FOLDER},mine.zip#mine"
    assert found[package.PATH_KEY] == f"./{FOLDER}:./mine"
    assert os.environ["PYSPARK_PYTHON"] == f"python{sys.version_info.major}.{sys.version_info.minor}"
    # What `python3.N` of the driver's PATH needs, whichever environment it belongs to.
    asked = "import rmqkit, msgspec, pyarrow, pyspark_rmqkit_store; print(rmqkit.__file__)"
    done = subprocess.run([os.environ["PYSPARK_PYTHON"], "-S", "-c", asked], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == sys.modules["rmqkit"].__file__, done.stderr


def test_a_package_needs_a_cluster_that_is_not_started_yet(made, monkeypatch):
    given = {package.PACKAGE_KEY: made.path}
    for master in ({}, {"spark.master": "local[2]"}):
        with pytest.raises(ConfigError, match="is for workers on other machines: set the master of a cluster"):
            sessions._settings({**master, **given})
    monkeypatch.setenv(sessions.GATEWAY, "1")
    with pytest.raises(ConfigError, match="Spark runs already; pass the file to spark-submit, with --archives"):
        sessions._settings({"spark.master": "yarn", **given})
