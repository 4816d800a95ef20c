"""Packs what the executors of a Spark cluster need, for workers that do not have rmqkit.

    build("rmqkit-package.tar.gz")                        # on the driver's machine
    session(master="spark://…", conf={"spark.rmqkit.package": "rmqkit-package.tar.gz"})

The package is a folder of installed distributions: rmqkit, what it requires, pyarrow, and the
compressions that are installed. Some have compiled modules, which Python cannot import from a zip
(`--py-files`). So Spark unpacks the archive in the working folder of each executor
(`spark.archives`), and the executors' PYTHONPATH leads there. The compiled modules fit one minor
version of Python and one platform; the archive's first file, MARK, names both, and the release of
rmqkit.

The package has neither Python nor PySpark: workers have PySpark from their Spark, and a Python of
the driver's minor version. Spark starts Python by one path on the driver and on the workers. With a
package this is the name `python3.N`, which both find on their PATH. On the driver PYTHONPATH leads
to the installed packages, because the Python found there may be another than the driver's.
"""

import gzip
import io
import os
import re
import sys
import sysconfig
import tarfile
from collections.abc import Iterator, Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import msgspec

from rmqkit.errors import ConfigError, RmqkitError

#: Setting of a session: the file of a package.
PACKAGE_KEY = "spark.rmqkit.package"
ARCHIVES_KEY, PATH_KEY = "spark.archives", "spark.executorEnv.PYTHONPATH"
#: The folder of the package in an executor's working folder.
FOLDER = "rmqkit-package"
MARK = "rmqkit-package.json"
OWN = "rmqkit"
#: The packages of this distribution. They are found by import: an editable install lists no files.
OWN_PACKAGES = ("rmqkit", "pyspark_rmqkit", "pyspark_rmqkit_store")
#: Distributions beside those that rmqkit requires: the rows' format, and bodies' compressions.
NEEDED, OPTIONAL = ("pyarrow",), ("lz4", "zstandard")
#: Parts of distributions that nobody imports in an executor; they are a third of the size.
OMITTED = frozenset({"__pycache__", "include", "tests"})
#: gzip's level: higher ones take minutes and save a few percent.
LEVEL = 6


class PackageFailed(RmqkitError):
    """No package can be made of this environment. The text names the distribution."""


class PackageMark(msgspec.Struct, frozen=True):
    """What a package fits: the minor version of Python, the platform, and the release of rmqkit."""

    python: str
    platform: str
    rmqkit: str


class PackageResult(PackageMark, frozen=True, kw_only=True):
    """The result of `build`: what the package fits, and the file at `path`, of `bytes`."""

    path: str
    bytes: int
    #: Name and version of each distribution in the package, sorted.
    distributions: list[str]
    #: Spark's settings for executors that use the package.
    settings: dict[str, str]


def python_name() -> str:
    """Return the program that starts this minor version of Python on the driver and the workers."""
    return f"python{sysconfig.get_python_version()}"


def own_mark() -> PackageMark:
    """Return the mark of a package that this process would build."""
    return PackageMark(sysconfig.get_python_version(), sysconfig.get_platform(), metadata.version(OWN))


def file_name() -> str:
    """Return the name of the file that `rmqkit pipeline package` writes by default."""
    mark = own_mark()
    return f"{FOLDER}-{mark.rmqkit}-py{mark.python}-{mark.platform}.tar.gz"


def build(path: str | os.PathLike[str]) -> PackageResult:
    """Write the package of this environment to `path`, as a whole or not at all.

    Two builds of one environment have the same bytes. Raises PackageFailed if a distribution is
    missing or lists no files, OSError if the file cannot be written.
    """
    target = Path(path).absolute()
    found = distributions()
    files = dict(sorted(_files(found)))
    made = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with (
            made.open("wb") as raw,
            gzip.GzipFile("", "wb", LEVEL, raw, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w") as archive,
        ):
            _add(archive, MARK, msgspec.json.encode(own_mark()))
            for name, file in files.items():
                _add(archive, name, file.read_bytes())
        os.replace(made, target)
    finally:
        made.unlink(missing_ok=True)
    return PackageResult(
        path=str(target),
        bytes=target.stat().st_size,
        **msgspec.structs.asdict(own_mark()),
        distributions=sorted(f"{each.name} {each.version}" for each in found),
        settings=executor_settings(target, {}),
    )


def distributions() -> list[metadata.Distribution]:
    """Return the distributions of a package, sorted by name. Raises PackageFailed."""
    found: dict[str, metadata.Distribution] = {}
    waiting = [OWN, *NEEDED, *(f"{name}; optional" for name in OPTIONAL)]
    while waiting:
        required, _, marker = waiting.pop().partition(";")  # such as `a>=1; python_version < "3.12"`
        name = re.findall(r"[\w.-]+", required)[0]
        if _key(name) in found:
            continue
        try:
            each = found[_key(name)] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            if marker:
                continue  # required on other platforms or versions of Python, or optional
            raise PackageFailed(f"{name} is not installed: pip install 'rmqkit[spark]'") from None
        waiting += [text for text in each.requires or () if "extra" not in text.partition(";")[2]]
    return [found[key] for key in sorted(found)]


def _key(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _files(found: list[metadata.Distribution]) -> Iterator[tuple[str, Path]]:
    for package in OWN_PACKAGES:
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            raise PackageFailed(f"{package} is not installed: pip install rmqkit")
        root = Path(spec.origin).parent
        for path in root.rglob("*"):
            if path.is_file() and not OMITTED & set(path.relative_to(root).parts):
                yield path.relative_to(root.parent).as_posix(), path
    for each in found:
        if each.files is None:
            raise PackageFailed(f"{each.name} was not installed by pip: it does not list its files")
        for listed in each.files:
            # Scripts are listed relative to the packages, as ../../../bin/f2py.
            is_own = _key(each.name) == OWN and not listed.parts[0].endswith(".dist-info")
            if is_own or ".." in listed.parts or OMITTED & set(listed.parts):
                continue
            path = Path(str(listed.locate()))
            if path.is_file():
                yield listed.as_posix(), path


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


# --- for a session


def executor_settings(path: str | os.PathLike[str], given: Mapping[str, str]) -> dict[str, str]:
    """Return Spark's settings with which executors use the package at `path`.

    They include the archives and the PYTHONPATH of the settings `given`.
    """
    own = {ARCHIVES_KEY: (",", f"{os.fspath(path)}#{FOLDER}"), PATH_KEY: (":", f"./{FOLDER}")}
    return {key: mark.join(filter(None, (value, given.get(key)))) for key, (mark, value) in own.items()}


def check(path: str | os.PathLike[str]) -> None:
    """Raise ConfigError unless the file is a package for this Python, platform and rmqkit."""
    try:
        with tarfile.open(path) as archive:
            first = archive.next()
            content = archive.extractfile(first) if first is not None and first.name == MARK else None
            if content is None:
                raise ConfigError(f"{PACKAGE_KEY}: {path} is no package of `rmqkit pipeline package`")
            mark = msgspec.json.decode(content.read(), type=PackageMark)
    except FileNotFoundError:
        raise ConfigError(f"{PACKAGE_KEY}: {path} does not exist; make it with `rmqkit pipeline package`") from None
    except (OSError, EOFError, tarfile.TarError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{PACKAGE_KEY}: {path} cannot be read: {error}") from None
    own = msgspec.structs.asdict(own_mark())
    for name, packed in msgspec.structs.asdict(mark).items():
        if packed != own[name]:
            raise ConfigError(f"{PACKAGE_KEY}: {path} was made for {name} {packed}, and this is {own[name]}: make it again")


def prepare_driver() -> None:
    """Set the environment of Spark's JVM so that `python3.N` finds rmqkit on this machine."""
    os.environ.setdefault("PYSPARK_PYTHON", python_name())
    specs = [find_spec(name) for name in (OWN, "msgspec", "pyarrow")]
    here = [str(Path(spec.origin).parents[1]) for spec in specs if spec and spec.origin]
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(each for each in (*given, *here) if each))
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])
