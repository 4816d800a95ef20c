"""The first minute with rmqkit: start a cluster on this machine, send, consume, break it, stop it.

`make demo` runs it. Each step is a command that you can type yourself; it is printed before it
runs. The cluster uses free ports and a temporary folder. It is removed at the end, even if a step
fails.
"""

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

RMQKIT = str(Path(sys.executable).with_name("rmqkit"))

#: not removed at the end, so that you can open it
REPORT = Path(tempfile.gettempdir()) / "rmqkit-fail-master.html"

STEPS = [
    ("Start a name server, a master and its slave as processes:", "rmqkit cluster up demo --any-port"),
    ("Send five messages to the queues of a new topic:", "rmqkit send orders --count 5 --key order-1 'a fresh order'"),
    ("Read them (no group: no offset is committed, it stops at the end):", "rmqkit consume orders"),
    ("Read one as a JSON object per line, for scripts:", "rmqkit consume orders --max 1 --json"),
    ("Show which nodes run, and where:", "rmqkit cluster status demo"),
    (
        "Kill the master under load, restart it, and check message by message what survived:",
        f"rmqkit fail-master --cluster demo --report {REPORT}",
    ),
]
NEXT = """
What to try next
  . .venv/bin/activate                             the `rmqkit` command for this shell
  rmqkit cluster up                                start a cluster on the usual ports (name server 127.0.0.1:9876)
  rmqkit send greetings hello                      then: rmqkit consume greetings --follow
  rmqkit cluster kill master && rmqkit cluster status
                                                   kill the master and see the effect, then: rmqkit cluster start
  rmqkit fail-master --fault pause                 pause the master and see what survived, with a report
  rmqkit cluster down                              stop it; the data is kept (--purge removes it)
  python examples/send_and_consume.py              the same from Python
  Apache's own clients work unchanged: point their namesrvAddr at 127.0.0.1:9876
"""


def run(command: str, env: dict[str, str]) -> None:
    print(f"\n$ {command}", flush=True)
    words = shlex.split(command)
    subprocess.run([RMQKIT, *words[1:]], env=env, check=True)


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="rmqkit-demo-") as home:
        env = {**os.environ, "RMQKIT_HOME": home}
        env.pop("NAMESRV_ADDR", None)
        try:
            for text, command in STEPS:
                print(f"\n{text}", flush=True)
                # Commands without a cluster name use NAMESRV_ADDR. Set it once the cluster runs.
                run(command, env)
                if "NAMESRV_ADDR" not in env:
                    env["NAMESRV_ADDR"] = address_of("demo", env)
        except subprocess.CalledProcessError as failed:
            print(f"\nThe step failed with exit code {failed.returncode}.", file=sys.stderr)
            return 1
        finally:
            print("\nStop it and remove its data:")
            run("rmqkit cluster down demo --purge", env)
    print(NEXT)
    return 0


def address_of(cluster: str, env: dict[str, str]) -> str:
    import json

    command = [RMQKIT, "cluster", "status", cluster, "--json"]
    status = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    return str(json.loads(status.stdout)["namesrv"])


if __name__ == "__main__":
    sys.exit(main())
