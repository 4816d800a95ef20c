"""Installs plug-ins as pip does: a module on the path, and a `.dist-info` with its entry point."""

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """`install(module, source)` installs a distribution `module-dist` and returns its folder.

    A process finds the plug-in if the folder is on its path. `value` is the value of the entry
    point if that is not the module.
    """
    site = tmp_path / "site"
    site.mkdir()
    made: list[str] = []

    def put(module: str, source: str, *, value: str = "") -> Path:
        text = "from rmqkit.hookspecs import hookimpl\n" + dedent(source)
        (site / f"{module}.py").write_text(text)
        info = site / f"{module}_dist-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}-dist\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[rmqkit]\n{module} = {value or module}\n")
        made.append(module)
        importlib.invalidate_caches()
        return site

    monkeypatch.syspath_prepend(str(site))
    paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    yield put
    for module in made:
        sys.modules.pop(module, None)
