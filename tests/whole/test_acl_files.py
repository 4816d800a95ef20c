"""A cluster whose users come from a file of ACL 1.0: real processes, a real file that changes."""

import time

import pytest

from tests.cli.conftest import free_base, lifeline, make_shell, purge  # noqa: F401  # a fixture

pytestmark = pytest.mark.long

TIMEOUT_S = 30.0
APP = {"RMQKIT_ACCESS_KEY": "orders-app", "RMQKIT_SECRET_KEY": "12345678"}


class AclCluster:
    """One broker with `aclEnable`, and its file."""

    def __init__(self, home, lifeline) -> None:  # noqa: F811
        self.shell = make_shell(home / "home", lifeline)
        self.path = home / "conf" / "plain_acl.yml"
        self.path.parent.mkdir()
        self.write("PUB|SUB")
        words = ("--preset", "secure", "--replicas", "1", "--base-port", free_base(), "--set", "aclEnable=true")
        self.shell.run("cluster", "up", *words, "--set", f"rocketmq.acl.plain.file={self.path}")
        self.shell.run("topic", "create", "orders")

    def write(self, perm: str) -> None:
        text = f"accounts:\n- accessKey: orders-app\n  secretKey: '12345678'\n  topicPerms: [orders={perm}]\n"
        new = self.path.with_suffix(".new")
        new.write_text(text)
        new.replace(self.path)

    def sends(self) -> bool:
        done = self.shell.run("send", "orders", "hello", env=APP, code=None)
        assert done.returncode == 0 or "has no right to Topic:orders" in done.stderr
        return done.returncode == 0

    def until(self, condition) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.1)

    @property
    def log(self) -> str:
        return (self.shell.home / "default/nodes/broker-a-0/log").read_text()


def test_users_of_a_file(tmp_path, lifeline):  # noqa: F811
    cluster = AclCluster(tmp_path, lifeline)
    shell = cluster.shell
    try:
        cluster.until(cluster.sends)
        cluster.write("SUB")
        cluster.until(lambda: not cluster.sends())
        cluster.write("ALL")
        cluster.until(lambda: "acl files not reloaded" in cluster.log)
        assert "permission 'ALL' is unknown" in cluster.log
        assert not cluster.sends()
        cluster.write("PUB")
        cluster.until(cluster.sends)
        assert "comes from a file of ACL 1.0" in shell.run("acl", "allow", "orders-app", "Pub", "Topic:x", code=1).stderr
        cluster.write("ALL")
        refused = shell.run("cluster", "restart", "broker-a-0", code=1)
        assert f"{cluster.path}:2: account orders-app: 'orders=ALL': permission 'ALL' is unknown" in refused.stderr
        assert "12345678" not in cluster.log + refused.stderr
    finally:
        purge(shell)
