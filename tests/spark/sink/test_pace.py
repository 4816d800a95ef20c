"""The pace that the tasks of a job share: a server with the test's clock, and tasks as clients."""

import contextlib
import socket

import pytest

from rmqkit.errors import PeerUnreachable
from rmqkit.spark.sink import pace
from rmqkit.spark.sink.pace import PaceServer, SendPace, SharedPace


class TestSendPace:
    def test_rows_go_at_a_steady_pace(self):
        kept = SendPace(100)
        assert [round(kept.pause_s(5.0), 3) for _ in range(4)] == [0, 0.01, 0.02, 0.03]
        assert round(kept.pause_s(5.02), 3) == 0.02

    def test_a_chunk_counts_as_its_rows(self):
        kept = SendPace(100)
        assert [round(kept.pause_s(5.0, 20), 3) for _ in range(3)] == [0, 0.2, 0.4]

    def test_a_stop_is_not_caught_up_for_long(self):
        kept = SendPace(100)
        kept.pause_s(5.0)
        pauses = [kept.pause_s(60.0) for _ in range(200)]
        assert sum(not pause for pause in pauses) == 11
        assert round(pauses[-1], 3) == 1.89


@pytest.fixture
def now():
    return [100.0]


@pytest.fixture
def server(now):
    made = PaceServer("127.0.0.1", clock=lambda: now[0])
    yield made
    made.close()


class Task:
    """A task that sends as fast as it may. `due_s` is when it may send its next row."""

    def __init__(self, server, now, *, rows, per_second=1000, job="job"):
        self.left = rows
        self.sent_at = []
        self._pace = SharedPace(server.place, job, per_second)
        self._now = now
        self.due_s = now[0]

    def send(self):
        self.sent_at.append(self._now[0])
        self.left -= 1
        if self.left:
            self.due_s = self._now[0] + self._pace.pause_s(self._now[0])
        else:
            self._pace.close()


def run(tasks, now):
    """Let each task send its rows when they are due, in virtual time; return all times of rows."""
    for task in tasks:
        task.due_s = now[0] + task._pace.pause_s(now[0])
    while waiting := [task for task in tasks if task.left]:
        following = min(waiting, key=lambda task: task.due_s)
        now[0] = max(now[0], following.due_s)
        following.send()
    return sorted(at for task in tasks for at in task.sent_at)


@pytest.mark.parametrize("sizes", [(3000,), (1000, 1000, 1000), (2990, 5, 5), (500, 1500, 1000)])
def test_the_rate_is_that_of_the_job_however_many_tasks_send(server, now, sizes):
    """3,000 rows at 1,000 a second take 3 s, also if small tasks end early: the rest goes on."""
    times = run([Task(server, now, rows=size) for size in sizes], now)
    assert len(times) == 3000
    # A task may end before it sends the last chunk it was granted.
    assert 2.8 <= times[-1] - times[0] <= 3.0 + len(sizes) * pace.CHUNK_S
    chunk = 1000 * pace.CHUNK_S
    for begin in range(0, 3000, 250):
        in_a_second = [at for at in times if times[begin] <= at < times[begin] + 1]
        assert len(in_a_second) <= 1000 + len(sizes) * chunk


def test_a_task_gets_the_share_of_one_that_has_ended(server, now):
    small, large = Task(server, now, rows=200), Task(server, now, rows=1000)
    run([small, large], now)
    both = [at for at in large.sent_at if at <= small.sent_at[-1]]
    alone = [at for at in large.sent_at if at > small.sent_at[-1]]
    assert len(both) / (both[-1] - both[0]) == pytest.approx(500, rel=0.15)
    assert len(alone) / (alone[-1] - alone[0]) == pytest.approx(1000, rel=0.05)


def test_jobs_have_their_own_rates(server, now):
    one, other = Task(server, now, rows=100, per_second=100), Task(server, now, rows=100, per_second=10, job="other")
    run([one, other], now)
    assert one.sent_at[-1] - one.sent_at[0] == pytest.approx(1, rel=0.1)
    assert other.sent_at[-1] - other.sent_at[0] == pytest.approx(10, rel=0.1)
    assert [server.pace(*each).rows for each in (("job", 100), ("other", 10), ("nobody", 10))] == [100, 100, 0]


def test_a_slow_rate_is_asked_for_row_by_row(server, now):
    task = SharedPace(server.place, "job", 1)
    assert [task.pause_s(0.0) for _ in range(3)] == [0, 1, 2]
    task.close()


def test_the_jobs_that_are_kept_are_limited(monkeypatch):
    monkeypatch.setattr(pace, "JOBS_MAX", 2)
    server = PaceServer("127.0.0.1")
    for job in ("a", "b", "a", "c"):
        server.pause_s(job, 10, 1)
    assert [server.pace(job, 10).rows for job in "acb"] == [2, 1, 0]
    server.close()


def test_the_connected_tasks_are_limited(monkeypatch):
    monkeypatch.setattr(pace, "TASKS_MAX", 1)
    server = PaceServer("127.0.0.1", clock=lambda: 100.0)
    first, second = (SharedPace(server.place, "job", 1) for _ in range(2))
    assert first.pause_s(0.0) == 0
    with pytest.raises(PeerUnreachable, match="does not answer"):
        second.pause_s(0.0)
    second.close()
    first.close()
    server.close()


@pytest.mark.parametrize(
    "line",
    [b"GET / HTTP/1.1\r\n", b'{"secret":"guess","job":"j","per_second":1,"rows":1}\n', b"x" * 5000, b'{"job":"j"}\n'],
)
def test_a_peer_without_the_secret_gets_no_answer(server, line):
    host, port = server.place.partition("/")[0].split(":")
    with socket.create_connection((host, int(port)), timeout=5) as stranger:
        stranger.sendall(line)
        with contextlib.suppress(ConnectionResetError):  # it closed with our bytes unread
            assert stranger.recv(100) == b""
    assert server.pace("j", 1).rows == 0


def test_a_driver_out_of_reach_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}/x"
    with pytest.raises(PeerUnreachable, match=r"the driver's pace server at 127.0.0.1:\d+ does not answer: .*pace\.port"):
        SharedPace(place, "job", 1).pause_s(0.0)


def test_a_server_that_closes_is_named(server):
    task = SharedPace(server.place.rpartition("/")[0] + "/wrong", "job", 1)
    with pytest.raises(PeerUnreachable, match="does not answer"):
        task.pause_s(0.0)
    task.close()


# --- with Spark


def test_all_tasks_of_a_job_ask_the_driver(spark, own):
    """Four tasks of unequal size send with one rate. The server granted every row."""
    topic = own.topic()
    sizes = "IF(id % 4 = 0, id, 0)"
    rows = (
        spark.range(0, 80, 1, 1)
        .selectExpr("string(id) AS body", f"{sizes} AS place")
        .repartition(4, "place")
        .select("body")
    )
    writer = rows.write.format("rocketmq").option("namesrv", own.namesrv).option("topic", topic).option("runId", "paced")
    before = pace.serve_pace(spark).pace("paced", 2000).rows
    writer.option("messagesPerSecond", "2000").mode("append").save()
    chunk = round(2000 * pace.CHUNK_S)
    granted = pace.serve_pace(spark).pace("paced", 2000).rows - before
    assert 80 <= granted < 80 + 4 * chunk
    assert granted % chunk == 0


def test_a_session_without_the_server_is_refused(spark, own):
    from pyspark.errors import PySparkException

    place = spark.conf.get(pace.PLACE_KEY)
    spark.conf.unset(pace.PLACE_KEY)
    try:
        rows = spark.sql("SELECT 'x' AS body").write.format("rocketmq").option("namesrv", own.namesrv)
        with pytest.raises(PySparkException, match=r"messagesPerSecond: .* call rmqkit\.spark\.serve_pace\(spark\) before"):
            rows.option("topic", own.topic()).option("messagesPerSecond", "5").mode("append").save()
    finally:
        spark.conf.set(pace.PLACE_KEY, place)
