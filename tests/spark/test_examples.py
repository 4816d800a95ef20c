"""Runs the Spark examples as functions in the shared session; each script would start a JVM."""

import importlib.util
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("spark_*.py"))


@pytest.mark.long
@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.name)
def test_example(spark, pair, script, tmp_path, monkeypatch):
    pair.put_right()
    monkeypatch.setenv("NAMESRV_ADDR", pair.namesrv)
    spec = importlib.util.spec_from_file_location(script.stem, script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(spark, tmp_path / "lake")
