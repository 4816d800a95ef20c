"""The first minute with rmqkit: a cluster on this machine, real messages, its status, and down again.

Run by `make demo`. Each step is a command you can type yourself; it is printed before it runs. The cluster lives in a
temporary folder, takes free ports, and is gone at the end even when a step fails.
"""

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

RMQKIT = str(Path(sys.executable).with_name("rmqkit"))

#: stays, to be looked at
REPORT = Path(tempfile.gettempdir()) / "rmqkit-fail-master.html"

STEPS = [
    ("A name server, a master and its slave, as processes of their own:", "rmqkit cluster up demo --any-port"),
    ("Five messages, spread over the queues of a new topic:", "rmqkit send orders --count 5 --key order-1 'a fresh order'"),
    ("Read them back (no group: nothing is committed, it ends when caught up):", "rmqkit consume orders"),
    ("The same, as one JSON object a line, for scripts:", "rmqkit consume orders --max 1 --json"),
    ("What runs, and where:", "rmqkit cluster status demo"),
    (
        "Kill the master under load, bring it back, prove message by message what survived:",
        f"rmqkit fail-master --cluster demo --report {REPORT}",
    ),
]
NEXT = """
What to try next
  . .venv/bin/activate                             the `rmqkit` command for this shell
  rmqkit cluster up                                a cluster that stays, on the usual ports (name server 127.0.0.1:9876)
  rmqkit send greetings hello                      then: rmqkit consume greetings --follow
  rmqkit cluster kill master && rmqkit cluster status
                                                   break it, look at it, then: rmqkit cluster start
  rmqkit fail-master --fault pause                 break it and be told what survived, with a report to look at
  rmqkit cluster down                              stop it; the data stays (--purge removes it)
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
                # The demo's cluster is the one that commands find: it is named, the default is not.
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
