"""Files that cannot be brokers: the requester gets an error, and the process continues."""

import os

import pytest

from rmqkit.container.node import ChangeResult
from rmqkit.process.broker_container import Brokers


class Hosting:
    def add(self, spec, failed):
        os.makedirs(spec.folder)


NO_PATH = 'brokerName = "b"\nstorePathRootDir = "a\\u0000b"\n'


@pytest.mark.parametrize("text", [NO_PATH, "brokerName = " + "[" * 5000, "brokerName = [\n", "\xff\xfe\x00"])
def test_a_file_that_cannot_be_read_ends_nobody(tmp_path, text):
    brokers = Brokers(folder=str(tmp_path))
    brokers._hosting = Hosting()
    path = tmp_path / "broker.toml"
    path.write_text(text, encoding="latin-1")
    told: list[ChangeResult] = []
    brokers._add(str(path), told.append)
    assert len(told) == 1
    assert told[0].error
    assert "\n" not in told[0].error
    assert "the container's log says why" in told[0].for_others
    assert not brokers.container.brokers
    assert brokers.settings()["brokerConfigPaths"] == ""
