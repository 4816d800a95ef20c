"""A real process of several brokers, for tests: its files, its start, its reports."""

import json
import subprocess
import sys
import time

from rmqkit.cluster.health.caller import Caller
from rmqkit.wire.bodies import KVTable
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.schemas.send import SendMessageRequestV2

DEADLINE_S = 20
NODE = [sys.executable, "-m", "rmqkit.process"]


class Container:
    """A container of some brokers with its log on stderr."""

    def __init__(self, folder, base, lifeline, environment=None):
        self.folder = folder
        self.lifeline = lifeline
        self.environment = environment
        self.base = base
        self.at = str(base + 50)
        self.process = None

    def config(self, name, number, **more):
        """Write a broker's configuration file and return its path."""
        values = {
            "brokerName": name,
            "listenPort": self.base + 10 * number,
            "bindAddress": "127.0.0.1",
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "mappedFileSizeCommitLog": 1 << 20,
            "storePathRootDir": self.folder / name / "store",
            **more,
        }
        path = self.folder / name / "broker.conf"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        return path

    def words(self, *paths):
        files = [word for path in paths for word in ("-c", str(path))]
        return [*files, "--container-port", self.at, "--container-folder", str(self.folder), "--own-logs"]

    def start(self, *paths):
        self.process = subprocess.Popen(
            [*NODE, *self.words(*paths), "--lifeline", str(self.lifeline)],
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
            pass_fds=(self.lifeline,),
        )
        for line in self.process.stderr:
            if "container ready" in line:
                return self
        raise AssertionError("it ended")

    def brokers(self):
        with Caller("127.0.0.1", int(self.at), time.monotonic() + DEADLINE_S) as container:
            table = KVTable.decode(container.ask(RequestCode.GET_BROKER_RUNTIME_INFO).body).table
        return {each["name"]: each["state"] for each in json.loads(table["containerBrokers"])}

    def store_one(self, name, number):
        """Send a message to the broker's own topic and wait for the response."""
        request = SendMessageRequestV2(
            producer_group="p",
            topic=name,
            default_topic="TBW102",
            default_topic_queue_nums=1,
            queue_id=0,
            sys_flag=0,
            born_timestamp=1,
            flag=0,
        )
        with Caller("127.0.0.1", self.base + 10 * number, time.monotonic() + DEADLINE_S) as broker:
            broker.ask(RequestCode.SEND_MESSAGE_V2, request, b"kept")

    def log(self, name):
        return (self.folder / name / "log").read_text()

    def stop(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process.stderr.close()
