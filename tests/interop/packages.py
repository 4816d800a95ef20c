"""Installs pinned clients of other registries: npm's ali-ons and PyPI's rocketmq.

They go into a cache folder of the user, never into the project. A folder's name contains a hash of
the pin, so a new pin gets a new folder. A missing tool or an unreachable registry is an error. Only
a platform without a suitable wheel skips the tests, with the reason.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from tests.helpers.file_lock import file_lock

NODE = Path(__file__).parent / "node"
ALI_ONS = "3.12.0"
CPP = "0.4.4"
#: pip checks its download against this hash
_CPP_WHEEL = "rocketmq==0.4.4 --hash=sha256:{digest}\n"
_CPP_DIGEST = "19a10219f5074d1050e88cdbdfed3903a374b3f83c0dd2c8773e1e93e33ad02d"
_LIMIT_S = 300


class PackagesError(RuntimeError):
    """The registry's client failed. The text ends with its output."""


def cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(root) / "rmqkit-interop"


def no_node() -> str | None:
    """Return why the Node client cannot run here, or None."""
    lacking = [name for name in ("node", "npm") if shutil.which(name) is None]
    return f"not on the PATH: {', '.join(lacking)}" if lacking else None


def node_folder() -> Path:
    """Return a folder with the packages of package-lock.json, for NODE_PATH.

    Raises `PackagesError`.
    """
    lock = (NODE / "package-lock.json").read_bytes()
    folder = cache() / f"node-{hashlib.sha256(lock).hexdigest()[:16]}"
    with file_lock(cache() / "lock"):
        _install_node(folder)
    return folder / "node_modules"


def _install_node(folder: Path) -> None:
    if not (folder / "done").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(NODE / name, folder)
        _run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], folder)
        (folder / "done").touch()


def no_cpp() -> str | None:
    """Return why the C++ client's wheel cannot run here, or None."""
    if sys.platform != "linux" or platform.machine() != "x86_64" or platform.libc_ver()[0] != "glibc":
        return "the wheel is for Linux with glibc on x86_64"
    return None


def cpp_folder() -> Path:
    """Return a folder with the package `rocketmq`, for PYTHONPATH. Raises `PackagesError`."""
    folder = cache() / f"rocketmq-{CPP}-{_CPP_DIGEST[:16]}"
    with file_lock(cache() / "lock"):
        _install_cpp(folder)
    return folder


def _install_cpp(folder: Path) -> None:
    if not (folder / "done").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        pinned = folder / "requirements.txt"
        pinned.write_text(_CPP_WHEEL.format(digest=_CPP_DIGEST))
        # Only the wheel's metadata is for older Pythons; the code is pure ctypes over a bundled
        # library.
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        _run([*pip, "--require-hashes", "--only-binary", ":all:", "--target", str(folder), "-r", str(pinned)], folder)
        (folder / "done").touch()


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=_LIMIT_S)
    if done.returncode:
        raise PackagesError(f"{' '.join(command)}:\n{(done.stdout + done.stderr)[-2000:]}")
