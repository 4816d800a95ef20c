"""Checks with PyPI's `rocketmq` 0.4.4, which bundles Apache's C++ client 1.2.

The checks run in a separate process:

    python cpp_checks.py NAMESRV CHECK...       topics cpp_<check> must exist

Each check prints one JSON object on standard output: {"check", "ok", "detail"}; a failed check has
"error". Standard input is the lifeline: the process ends when it closes. It ends by `os._exit`,
because some threads of the library never end.

The checks work around two faults and one weakness of the package:

- A listener's exception counts as consumed. `subscribe` raises it inside the callback, where ctypes
  turns it into 0. So the checks register listeners that return their status.
- Strings are passed as C strings, so a body ends at its first NUL.
- A producer gives up if its single route query is not answered within seconds, which happens on a
  loaded machine. Nothing was sent then, so `PatientProducer` sends again.
"""

import json
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rocketmq.client import Message, Producer, PullConsumer, PushConsumer, RecvMessage, SendStatus, dll
from rocketmq.ffi import MessageModel

WAIT_S = 90.0
SUCCESS, LATER = 0, 1
Take = Callable[[Any], int]


def until(what: str, reached: Callable[[], bool]) -> None:
    end_s = time.monotonic() + WAIT_S
    while not reached():
        assert time.monotonic() < end_s, f"not within {WAIT_S:.0f} s: {what}"
        time.sleep(0.02)


class PatientProducer:
    """Repeats a send while the client finds no route. Such a send never left the client."""

    def __init__(self, producer: Any) -> None:
        self._producer = producer

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._producer, name)
        if not name.startswith("send_"):
            return method

        def send(*arguments: Any) -> Any:
            end_s = time.monotonic() + WAIT_S
            while True:
                try:
                    return method(*arguments)
                except Exception as error:
                    if "No route info of this topic" not in str(error) or time.monotonic() > end_s:
                        raise
                    print(f"{name} found no route and is repeated", file=sys.stderr, flush=True)
                    time.sleep(0.5)

        return send


def numbered(prefix: str, count: int) -> list[str]:
    return sorted(f"{prefix}{i}" for i in range(count))


def signing(client: Any) -> Any:
    """Return the client with the keys of the environment, if there are any."""
    key, secret = os.environ.get("INTEROP_ACCESS_KEY"), os.environ.get("INTEROP_SECRET_KEY")
    if key and secret:
        client.set_session_credentials(key, secret, "ALIYUN")
    return client


class Scene:
    """The context of one check: its own topic, its own group, and the clients to shut down."""

    def __init__(self, namesrv: str, check: str) -> None:
        self.namesrv, self.topic, self.group = namesrv, f"cpp_{check}", f"cpp_group_{check}"
        self.opened: list[Any] = []

    def producer(self) -> Any:
        made = signing(Producer(f"p_{self.group}", timeout=10_000))
        made.set_namesrv_addr(self.namesrv)
        made.start()
        self.opened.append(made)
        return PatientProducer(made)

    def message(self, body: str, tag: str = "", key: str = "") -> Any:
        made = Message(self.topic)
        made.set_body(body)
        if tag:
            made.set_tags(tag)
        if key:
            made.set_keys(key)
        return made

    def consumer(
        self,
        take: Take,
        expression: str = "*",
        *,
        orderly: bool = False,
        model: Any = MessageModel.CLUSTERING,
        member: int = 0,
    ) -> Any:
        made = signing(PushConsumer(self.group, orderly=orderly, message_model=model))
        made.set_namesrv_addr(self.namesrv)
        made.set_instance_name(f"{self.topic}_{member}")
        dll.Subscribe(made._handle, self.topic.encode(), expression.encode())
        made._register_callback(lambda _consumer, message: take(RecvMessage(message)))
        made.start()
        self.opened.append(made)
        return made

    def close(self) -> None:
        for client in self.opened:
            client.shutdown()


def collect(got: list[str]) -> Take:
    def take(message: Any) -> int:
        got.append(message.body.decode())
        return SUCCESS

    return take


def send_sync(scene: Scene) -> dict[str, Any]:
    producer = scene.producer()
    sent = []
    for i in range(20):
        message = scene.message(f"m{i}", "TagA", f"key{i}")
        message.set_property("color", "red")
        sent.append(producer.send_sync(message))
    assert {result.status for result in sent} == {SendStatus.OK}
    assert len({result.msg_id for result in sent}) == 20
    seen: dict[str, tuple[Any, ...]] = {}

    def take(message: Any) -> int:
        seen[message.body.decode()] = (message.tags, message.keys, message["color"], message.id, message.reconsume_times)
        return SUCCESS

    scene.consumer(take)
    until("all messages", lambda: len(seen) == 20)
    for i, result in enumerate(sent):
        assert seen[f"m{i}"] == (b"TagA", f"key{i}".encode(), b"red", result.msg_id, 0), seen[f"m{i}"]
    return {"got": len(seen)}


def send_async(scene: Scene) -> dict[str, Any]:
    producer = scene.producer()
    done: list[int] = []
    failed: list[str] = []
    for i in range(50):
        producer.send_async(
            scene.message(f"a{i}"),
            lambda result: done.append(result.offset),
            lambda error: failed.append(str(error)),
        )
    until("all callbacks", lambda: len(done) + len(failed) == 50)
    assert not failed, failed
    got: list[str] = []
    scene.consumer(collect(got))
    until("all messages", lambda: len(set(got)) == 50)
    return {"got": len(got)}


def send_oneway(scene: Scene) -> dict[str, Any]:
    producer = scene.producer()
    for i in range(20):
        producer.send_oneway(scene.message(f"o{i}"))
    got: list[str] = []
    scene.consumer(collect(got))
    until("all messages", lambda: sorted(set(got)) == numbered("o", 20))
    return {"got": len(got)}


def send_batch(scene: Scene) -> dict[str, Any]:
    producer = scene.producer()
    result = producer.send_batch([scene.message(f"b{i}", "TagB", f"key{i}") for i in range(5)])
    assert result.status == SendStatus.OK
    seen: dict[str, tuple[Any, ...]] = {}

    def take(message: Any) -> int:
        seen[message.body.decode()] = (message.queue_id, message.queue_offset, message.tags, message.keys)
        return SUCCESS

    scene.consumer(take)
    until("all messages", lambda: len(seen) == 5)
    (queue,) = {place[0] for place in seen.values()}
    assert seen == {f"b{i}": (queue, i, b"TagB", f"key{i}".encode()) for i in range(5)}, seen
    return {"queue": queue}


def ordered(scene: Scene) -> dict[str, Any]:
    producer = scene.producer()
    for i in range(40):
        result = producer.send_orderly(scene.message(f"{i % 4}-{i:02}"), i % 4)
        assert result.status == SendStatus.OK
    got: list[tuple[int, str]] = []
    lock = threading.Lock()

    def take(message: Any) -> int:
        with lock:
            got.append((message.queue_id, message.body.decode()))
        return SUCCESS

    scene.consumer(take, orderly=True)
    until("all messages", lambda: len(set(got)) == 40)
    for queue in range(4):
        mine = [body for where, body in got if where == queue]
        assert mine == sorted(mine), mine
        assert len({body[0] for body in mine}) == 1, mine
    return {"got": len(got)}


def tag_filter(scene: Scene) -> dict[str, Any]:
    producer = scene.producer()
    tags = ["TagA", "TagB", "TagC", "Aa", "BB"]
    for i in range(40):
        producer.send_sync(scene.message(f"{tags[i % 5]}-{i}", tags[i % 5]))
    got: list[str] = []
    scene.consumer(collect(got), "TagA || BB")
    until("the chosen tags", lambda: len(set(got)) == 16)
    assert all(body.startswith(("TagA-", "BB-")) for body in got), got
    return {"got": len(got)}


def delay_level(scene: Scene) -> dict[str, Any]:
    came: list[float] = []

    def take(_message: Any) -> int:
        came.append(time.monotonic())
        return SUCCESS

    scene.consumer(take)
    message = scene.message("later")
    message.set_delay_time_level(2)
    sent_s = time.monotonic()
    scene.producer().send_sync(message)
    until("the delayed message", lambda: bool(came))
    assert came[0] - sent_s >= 4.5, came[0] - sent_s
    return {"waited_ms": round(1000 * (came[0] - sent_s))}


def timer(scene: Scene) -> dict[str, Any]:
    """The library knows no delivery time, but sends the property of one."""
    came: list[float] = []

    def take(_message: Any) -> int:
        came.append(time.monotonic())
        return SUCCESS

    scene.consumer(take)
    message = scene.message("at its time")
    message.set_property("TIMER_DELAY_MS", "3000")
    sent_s = time.monotonic()
    scene.producer().send_sync(message)
    until("the message", lambda: bool(came))
    assert came[0] - sent_s >= 2.9, came[0] - sent_s
    return {"waited_ms": round(1000 * (came[0] - sent_s))}


def retry(scene: Scene) -> dict[str, Any]:
    got: list[tuple[str, int]] = []

    def take(message: Any) -> int:
        got.append((message.body.decode(), message.reconsume_times))
        return SUCCESS if message.reconsume_times else LATER

    scene.consumer(take)
    scene.producer().send_sync(scene.message("again"))
    until("the second delivery", lambda: len(got) >= 2)
    assert got == [("again", 0), ("again", 1)], got
    return {"got": got}


def broadcasting(scene: Scene) -> dict[str, Any]:
    got: list[list[str]] = [[], []]
    for member in range(2):
        scene.consumer(collect(got[member]), model=MessageModel.BROADCASTING, member=member)
    producer = scene.producer()
    warm = [0]

    def both_have_begun() -> bool:
        # A broadcasting member begins at the end of each queue. A first message proves that it
        # listens.
        producer.send_sync(scene.message(f"warm{warm[0]}"))
        warm[0] += 1
        time.sleep(0.2)
        return all(mine for mine in got) and warm[0] >= 40

    until("both listen", both_have_begun)
    for i in range(20):
        producer.send_sync(scene.message(f"m{i}"))
    until("all messages for each", lambda: all(set(mine) >= set(numbered("m", 20)) for mine in got))
    return {"got": [len(mine) for mine in got]}


def rebalance(scene: Scene) -> dict[str, Any]:
    got: list[list[str]] = [[], []]
    producer = scene.producer()
    scene.consumer(collect(got[0]), member=0)
    for i in range(20):
        producer.send_sync(scene.message(f"alone{i}"))
    until("messages for one", lambda: set(got[0]) >= set(numbered("alone", 20)))
    scene.consumer(collect(got[1]), member=1)
    sent = 0

    def second_works() -> bool:
        nonlocal sent
        producer.send_sync(scene.message(f"shared{sent}"))
        sent += 1
        time.sleep(0.05)
        return sum(body.startswith("shared") for body in got[1]) >= 10

    until("messages for two", second_works)
    until("everything", lambda: {*got[0], *got[1]} >= {*numbered("alone", 20), *numbered("shared", sent)})
    return {"second": len(got[1]), "sent": sent}


def pull(scene: Scene) -> dict[str, Any]:
    producer = scene.producer()
    for i in range(20):
        producer.send_sync(scene.message(f"m{i}", "TagP" if i % 2 else "TagQ"))
    consumer = PullConsumer(scene.group)
    consumer.set_namesrv_addr(scene.namesrv)
    consumer.start()
    scene.opened.append(consumer)
    got = [message.body.decode() for message in consumer.pull(scene.topic)]
    assert sorted(got) == numbered("m", 20), got
    return {"got": len(got)}


CHECKS = {
    check.__name__: check
    for check in (
        send_sync,
        send_async,
        send_oneway,
        send_batch,
        ordered,
        tag_filter,
        delay_level,
        timer,
        retry,
        broadcasting,
        rebalance,
        pull,
    )
}


def client_log() -> str:
    """Return the end of the log that this process's client wrote below HOME."""
    logs = sorted(Path.home().glob(f"logs/**/*{os.getpid()}*"))
    return "".join(f"\n{log.name}:\n{log.read_text(errors='replace')[-3000:]}" for log in logs if log.is_file())


def run(namesrv: str, name: str) -> None:
    result: dict[str, Any] = {"check": name, "ok": True}
    scene = Scene(namesrv, name)
    try:
        result["detail"] = CHECKS[name](scene)
    except BaseException:
        result.update(ok=False, error=traceback.format_exc() + client_log())
    print(json.dumps(result), flush=True)
    scene.close()


def end_with_stdin() -> None:
    sys.stdin.buffer.read()
    os._exit(97)


def run_apart(namesrv: str, name: str) -> None:
    """Run one check in its own process: many clients in one process can crash this library."""
    command = [sys.executable, __file__, namesrv, name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        said = child.stdout.read()
        code = child.wait()
    if not said.endswith("\n"):
        said = json.dumps({"check": name, "ok": False, "error": f"ended with {code}, said {said!r}"}) + "\n"
    print(said, end="", flush=True)


def main(arguments: list[str]) -> None:
    if arguments == ["list"]:
        print(json.dumps(list(CHECKS)), flush=True)
        os._exit(0)
    threading.Thread(target=end_with_stdin, daemon=True).start()
    namesrv, *names = arguments
    if len(names) == 1:
        run(namesrv, names[0])
    else:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda name: run_apart(namesrv, name), names))
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
