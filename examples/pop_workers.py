"""Workers that share one queue, while one of them is killed and one message is poison.

    one queue ──► worker-1, worker-2, worker-3      the broker gives each image to one of them
                    │  killed in the middle of an image: 5 s later another worker gets it
                    │  fails on an image:                10 s later another try
                    ▼
                  %DLQ%<group>                       after one more failure

A pull consumer owns whole queues: a second worker on one queue would idle, and a slow image would
hold up those behind it. With `mode="pop"` the broker hides an image from the others while a worker
has it (`pop_invisible_time_ms`), and every image is acked for itself.

    python examples/pop_workers.py             uses the cluster that NAMESRV_ADDR names
    python examples/pop_workers.py HOST:PORT   uses yours; both take about 20 seconds
"""

import os
import subprocess
import sys
import threading
import time
from collections import Counter

from rmqkit import Admin, Message, MessageExt, Producer, PushConsumer

WORKERS = ("worker-1", "worker-2", "worker-3")
IMAGES = [f"image-{number:02}.png" for number in range(30)]
#: The first worker that gets this one is killed in the middle of it.
HUGE = "huge.png"
#: No worker can read this one.
BROKEN = "broken.png"


def work(namesrv: str, topic: str, group: str) -> None:
    """One worker: a process that resizes images until its standard input ends."""
    consumer = PushConsumer(
        group,
        namesrv=namesrv,
        mode="pop",
        consume_from="first",
        pop_invisible_time_ms=5_000,  # the shortest there is; longer than any image takes
        pop_batch_nums=1,  # take one image at a time, so that the others get some too
        pop_threshold_for_queue=1,
        consume_threads=1,
        max_reconsume_times=1,  # the second failure sends an image to the dead letters
    )
    consumer.subscribe(topic)

    @consumer.listener
    def resize(message: MessageExt) -> bool:
        name = message.body.decode()
        if name == BROKEN:
            print(f"failed {name}", flush=True)
            return False  # the image comes again: to this worker, or to another one
        if name == HUGE and message.reconsume_times == 0:
            print(f"began {name}", flush=True)
            time.sleep(60)  # it is killed before that
        time.sleep(0.02)
        print(f"resized {name}", flush=True)
        return True  # acked: nobody gets it again

    with consumer:
        sys.stdin.read()


class Workshop:
    """The workers as processes. Records what they print: (worker, word, image)."""

    def __init__(self, namesrv: str, topic: str, group: str) -> None:
        self.said: list[tuple[str, str, str]] = []
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self._readers: list[threading.Thread] = []
        for name in WORKERS:
            command = [sys.executable, __file__, "--work", namesrv, topic, group]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self.processes[name] = process
            self._readers.append(threading.Thread(target=self._read, args=(name, process)))
            self._readers[-1].start()

    def _read(self, name: str, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            word, image = line.split()
            self.said.append((name, word, image))
            if word != "resized" or image == HUGE:
                print(f"{name}: {word} {image}", flush=True)

    def wait_for(self, word: str, image: str, count: int = 1) -> str:
        """Return the worker that said it for the `count`th time."""
        until_s = time.monotonic() + 60
        while time.monotonic() < until_s:
            found = [name for name, *said in self.said if said == [word, image]]
            if len(found) >= count:
                return found[count - 1]
            time.sleep(0.05)
        raise TimeoutError(f"no worker said: {word} {image}")

    def close(self) -> None:
        for process in self.processes.values():
            assert process.stdin is not None
            process.stdin.close()
        for reader in self._readers:
            reader.join()
        for process in self.processes.values():
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def main(namesrv: str) -> None:
    topic, group = f"images-{os.getpid()}", f"resizers-{os.getpid()}"
    with Admin(namesrv) as admin:
        admin.create_topic(topic, queue_nums=1)
        workshop = Workshop(namesrv, topic, group)
        try:
            with Producer("uploads", namesrv=namesrv) as producer:
                for name in [BROKEN, *IMAGES[:15], HUGE, *IMAGES[15:]]:
                    producer.send(Message(topic, name))
            victim = workshop.wait_for("began", HUGE)
            workshop.processes[victim].kill()
            print(f"{victim} is killed; its images are hidden from the others until the 5 s are over")
            heir = workshop.wait_for("resized", HUGE)
            workshop.wait_for("failed", BROKEN, count=2)
            for name in IMAGES:
                workshop.wait_for("resized", name)
            # The dead letter is sent, and then the image is acked.
            while admin.pop_in_flight(group).total:
                time.sleep(0.1)
        finally:
            workshop.close()
        (letters,) = [each for each in admin.dead_letters(group) if each.total]
        dead = admin.message_at(letters.queue, letters.offset_min)
        assert dead is not None
    resized = Counter(name for name, word, _ in workshop.said if word == "resized")
    assert heir != victim
    assert len(resized) > 1, "one worker did all the work"
    assert (letters.total, dead.body.decode()) == (1, BROKEN)
    shares = ", ".join(f"{name} {count}" for name, count in sorted(resized.items()))
    print(f"\nresized: {shares}; {HUGE} went from {victim} to {heir}; {BROKEN} is a dead letter")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(*sys.argv[2:5])
    else:
        main(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876"))
