"""Kills a broker repeatedly under load: no acknowledged message is lost or changed, offsets stay
dense.

`make test` runs 3 rounds per flush mode, `make crash` 20 (RMQKIT_CRASH_ROUNDS).
"""

import os
import random
import time
from pathlib import Path

import pytest

from rmqkit.cluster.cluster import Cluster
from tests.helpers import ports
from tests.whole.workload import Workload, assert_kept, assert_sent, read_all

ROUNDS = int(os.environ.get("RMQKIT_CRASH_ROUNDS", "3"))


@pytest.fixture
def start(tmp_path: Path):
    clusters = []

    def start_cluster(**settings) -> Cluster:
        cluster = Cluster("crash", home=tmp_path)
        clusters.append(cluster)
        # Small files, so that some kills happen at the end of a file.
        small = {"mappedFileSizeCommitLog": 4 * 1024 * 1024, "mappedFileSizeConsumeQueue": 20 * 3000}
        base = ports.free_base(range(-2, 40))
        cluster.up(any_port=True, base_port=base, replicas=1, settings={**small, **settings})
        return cluster

    yield start_cluster
    for cluster in clusters:
        cluster.down(purge=True)


@pytest.mark.parametrize("mode", ["ASYNC_FLUSH", pytest.param("SYNC_FLUSH", marks=pytest.mark.long)])
def test_kill_9_under_load_loses_nothing_acknowledged(start, mode):
    cluster = start(flushDiskType=mode)
    rng = random.Random(mode)
    with Workload(cluster.namesrv, "crash") as work:
        for _ in range(ROUNDS):
            work.wait_for(rng.randrange(300, 1500))
            killed = cluster.kill("master")
            assert killed == ["broker-a-0"]
            cluster.start("master")
        work.wait_for(200)
    found = read_all(cluster.namesrv, "crash")
    assert_kept(work, found)
    assert work.unknown, "the kills hit no send: the load was too light to prove anything"


@pytest.mark.long
def test_sigterm_under_load_loses_nothing_acknowledged(start):
    cluster = start()
    with Workload(cluster.namesrv, "crash") as work:
        for _ in range(2):
            work.wait_for(500)
            cluster.stop("master")
            assert not (cluster.node_folder("broker-a-0") / "store" / "abort").exists(), "the stop was not a clean one"
            cluster.start("master")
        work.wait_for(200)
    assert_kept(work, read_all(cluster.namesrv, "crash"))


@pytest.mark.long
def test_transient_store_pool_keeps_what_it_had_written(start):
    """With the pool a kill may lose acknowledged messages. The rest must be complete and dense."""
    cluster = start(transientStorePoolEnable=True)
    with Workload(cluster.namesrv, "crash") as work:
        work.wait_for(1000)
        cluster.kill("master")
        cluster.start("master")
        work.wait_for(200)
    # Messages acknowledged since the start become readable with the next commit of the pool.
    deadline_s = time.monotonic() + 30
    while len(found := read_all(cluster.namesrv, "crash")) < 200 and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert len(found) >= 200
    assert_sent(work, found)
