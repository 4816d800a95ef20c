"""Foreign clients with keys against our cluster with access control.

One cluster without TLS is for all of them, because ali-ons has no TLS. A secure cluster (`cluster
up --preset secure`) runs some checks of the Java client 5.5.0 with TLS as well. All clients act as
a normal user with rules, never as a super user.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import pytest

from rmqkit.client_keys import keys_of_file
from tests.interop import apache, java, packages, test_cpp_client, test_node_client
from tests.interop.clusters import OUR_SETTINGS, rmqkit
from tests.interop.lines import CheckRun
from tests.interop.mqadmin import Mqadmin
from tests.interop.until import until

USER, SECRET = "guest", "secret of the guest"
OPERATOR, OPERATOR_SECRET = "operator", "secret of the operator"
SETTINGS = {
    **OUR_SETTINGS,
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": json.dumps({"username": OPERATOR, "password": OPERATOR_SECRET}),
    "innerClientAuthenticationCredentials": json.dumps({"accessKey": "inner", "secretKey": "secret of the nodes"}),
}
RULES = (("All", "Topic:*"), ("All", "Group:*"), ("Get", "Cluster:*"))
KEYS = {"interop.access.key": USER, "interop.secret.key": SECRET}
JAVA_CHECKS = (
    "send_sync", "send_async", "send_oneway", "send_batch", "send_unicode", "send_large", "send_to_unknown_topic",
    "send_transaction", "push_one_member", "push_sql_filter", "push_orderly", "push_retry_dlq", "push_resume",
    "pull_long_poll", "lite_subscribe_resume", "admin_topic", "admin_cluster", "admin_offsets", "query_by_key",
    "query_by_unique_id", "admin_view_message",
)  # fmt: skip
JAVA_RUNS = [(apache.VERSION, check) for check in (*JAVA_CHECKS, "pop_push", "recall_timer")]
JAVA_RUNS += [(apache.OLDER, check) for check in JAVA_CHECKS]
WITH_TLS = ("send_sync", "send_transaction", "push_one_member", "lite_subscribe_resume")
NODE_CHECKS = ("send_sync", "send_by_sharding_key", "tag_filter", "sql_filter", "retry")
CPP_CHECKS = ("send_sync", "send_oneway", "ordered", "tag_filter", "retry")


class Cluster:
    """A cluster with access control, and commands of its operator."""

    def __init__(self, home: Path, *words: str, keys: Sequence[str] = ()) -> None:
        self.home = home
        self._env = dict(zip(("RMQKIT_ACCESS_KEY", "RMQKIT_SECRET_KEY"), keys, strict=False))
        self.namesrv: str = ""
        up = self.run("cluster", "up", "--any-port", "--replicas", "1", *words, "--json")
        self.namesrv = json.loads(up)["namesrv"]
        self.run("user", "add", USER, stdin=f"{SECRET}\n")
        for actions, resource in RULES:
            self.run("acl", "allow", USER, actions, resource)

    def run(self, *words: str, stdin: str = "") -> str:
        done = rmqkit(self.home, *words, tls="", env=self._env, stdin=stdin)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def close(self) -> None:
        rmqkit(self.home, "cluster", "down", "--purge")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    words = [f"--set={key}={value}" for key, value in SETTINGS.items()]
    made = Cluster(tmp_path_factory.mktemp("home"), *words, keys=(OPERATOR, OPERATOR_SECRET))
    yield made
    made.close()


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    words = [f"--set={key}={value}" for key, value in OUR_SETTINGS.items()]
    made = Cluster(tmp_path_factory.mktemp("secure"), "--preset", "secure", *words)
    yield made
    made.close()


@pytest.fixture(scope="module")
def java_runs(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, CheckRun]]:
    """One JVM per version, started when its first check is asked for."""
    runs: dict[str, CheckRun] = {}

    class Runs(dict[str, CheckRun]):
        def __missing__(self, version: str) -> CheckRun:
            for each in runs.values():
                each.close()  # one JVM at a time
            checks = [check for wanted, check in JAVA_RUNS if wanted == version]
            home = tmp_path_factory.mktemp("driver")
            runs[version] = self[version] = java.run(cluster.namesrv, home, version, checks, KEYS)
            return runs[version]

    yield Runs()
    for each in runs.values():
        each.close()


@pytest.mark.parametrize(("version", "check"), JAVA_RUNS)
def test_java_client_with_keys(java_runs: dict[str, CheckRun], version: str, check: str) -> None:
    result = java_runs[version].result(check)
    assert result["ok"], result.get("trace", result)


def test_java_client_with_a_wrong_key_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    run = java.run(cluster.namesrv, tmp_path, apache.VERSION, ["send_sync"], KEYS | {"interop.secret.key": "wrong"})
    try:
        result = run.result("send_sync")
    finally:
        run.close()
    assert not result["ok"]
    assert "check signature failed." in str(result)


@pytest.fixture(scope="module")
def secure_run(secure: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CheckRun]:
    tls = {"tls.enable": "true", "tls.config.file": str(secure.home / "default/tls/tls.properties")}
    running = java.run(secure.namesrv, tmp_path_factory.mktemp("driver"), apache.VERSION, WITH_TLS, KEYS | tls)
    yield running
    running.close()


@pytest.mark.parametrize("check", WITH_TLS)
def test_java_client_with_keys_and_tls(secure_run: CheckRun, check: str) -> None:
    result = secure_run.result(check)
    assert result["ok"], result.get("trace", result)


# --- clients in other languages


def _run(cluster: Cluster, home: Path, prefix: str, command: list[str], env: dict[str, str], checks: Any) -> CheckRun:
    for check in checks:
        cluster.run("topic", "create", f"{prefix}_{check}", "--queues", "4")
    keys = {"INTEROP_ACCESS_KEY": USER, "INTEROP_SECRET_KEY": SECRET}

    def start(errors: IO[str]) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [*command, cluster.namesrv, *checks],
            cwd=home,
            env={**env, **keys},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )

    return CheckRun(home, start)


@pytest.fixture(scope="module")
def node_run(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CheckRun]:
    assert packages.no_node() is None, f"ali-ons needs node and npm; {packages.no_node()}"
    home = tmp_path_factory.mktemp("node")
    env = {**os.environ, "NODE_PATH": str(packages.node_folder()), "HOME": str(home)}
    running = _run(cluster, home, "node", ["node", str(packages.NODE / "checks.js")], env, NODE_CHECKS)
    yield running
    running.close()


@pytest.mark.parametrize("check", NODE_CHECKS)
def test_ali_ons_with_keys(node_run: CheckRun, check: str) -> None:
    assert check in test_node_client.CHECKS
    result = node_run.result(check)
    assert result["ok"], result.get("error", result)


@pytest.fixture(scope="module")
def cpp_run(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CheckRun]:
    home = tmp_path_factory.mktemp("cpp")
    command, env = [sys.executable, test_cpp_client.PROGRAM], test_cpp_client.environment(home)
    running = _run(cluster, home, "cpp", command, env, CPP_CHECKS)
    yield running
    running.close()


@pytest.mark.skipif(packages.no_cpp() is not None, reason=f"rocketmq-cpp: {packages.no_cpp()}")
@pytest.mark.parametrize("check", CPP_CHECKS)
def test_rocketmq_cpp_with_keys(cpp_run: CheckRun, check: str) -> None:
    assert check in test_cpp_client.CHECKS
    result = cpp_run.result(check)
    assert result["ok"], result.get("error", result)


# --- mqadmin


@pytest.fixture(scope="module")
def mqadmin(secure: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mqadmin]:
    """mqadmin as the operator of the secure cluster: `tools.yml` is a copy of `operator.yml`."""
    home = tmp_path_factory.mktemp("mqadmin")
    (home / "conf").mkdir()
    keys = (secure.home / "default/access/operator.yml").read_text()
    (home / "conf" / "tools.yml").write_text(keys)
    tls = {"tls.enable": "true", "tls.config.file": str(secure.home / "default/tls/tls.properties")}
    made = Mqadmin(secure.namesrv, home, tls)
    yield made
    made.close()


def test_mqadmin_manages_users(mqadmin: Mqadmin, secure: Cluster) -> None:
    assert mqadmin("clusterList").rows[0][:2] == ["DefaultCluster", "broker-a"]
    said = mqadmin("createUser", "-c", "DefaultCluster", "-u", "carol", "-p", "carols", "-t", "Normal")
    assert "success" in said.out, said
    assert mqadmin("listUser", "-c", "DefaultCluster").row("carol") == ["carol", "carols", "Normal", "enable"]
    assert {each["user"] for each in json.loads(secure.run("user", "list", "--json"))} >= {"carol", USER, "operator"}
    said = mqadmin("updateUser", "-c", "DefaultCluster", "-u", "carol", "-s", "disable")
    assert "success" in said.out, said
    assert mqadmin("getUser", "-c", "DefaultCluster", "-u", "carol").row("carol")[3] == "disable"
    mqadmin("deleteUser", "-c", "DefaultCluster", "-u", "carol")
    assert "carol" not in mqadmin("listUser", "-c", "DefaultCluster").out


def test_mqadmin_manages_rules(mqadmin: Mqadmin, secure: Cluster) -> None:
    mqadmin("createUser", "-c", "DefaultCluster", "-u", "dave", "-p", "daves", "-t", "Normal")
    rule = ("-s", "User:dave", "-r", "Topic:orders*,Group:bills", "-a", "Pub,Sub", "-d", "Allow", "-i", "10.0.0.0/8")
    assert "success" in mqadmin("createAcl", "-c", "DefaultCluster", *rule).out
    rules = json.loads(secure.run("acl", "list", "dave", "--json"))
    assert [(each["resource"], each["actions"], each["sources"]) for each in rules] == [
        ("Group:bills", ["Pub", "Sub"], ["10.0.0.0/8"]),
        ("Topic:orders*", ["Pub", "Sub"], ["10.0.0.0/8"]),
    ]
    secure.run("acl", "deny", "dave", "Sub", "Topic:orders-secret")
    listed = mqadmin("listAcl", "-c", "DefaultCluster", "-s", "dave").out
    assert "Topic:orders-secret" in listed
    assert "Deny" in listed
    mqadmin("updateAcl", "-c", "DefaultCluster", *rule[:2], "-r", "Group:bills", "-a", "Sub", "-d", "Deny")
    assert "Deny" in mqadmin("getAcl", "-c", "DefaultCluster", "-s", "User:dave").out
    mqadmin("deleteAcl", "-c", "DefaultCluster", "-s", "User:dave", "-r", "Topic:orders*")
    left = {each["resource"] for each in json.loads(secure.run("acl", "list", "dave", "--json"))}
    assert left == {"Group:bills", "Topic:orders-secret"}


def test_mqadmin_without_the_file_is_refused(secure: Cluster, tmp_path: Path) -> None:
    tls = {"tls.enable": "true", "tls.config.file": str(secure.home / "default/tls/tls.properties")}
    unsigned = Mqadmin(secure.namesrv, tmp_path, tls)
    try:
        said = unsigned("topicList")
        assert "username cannot be null." in said.out + said.err
    finally:
        unsigned.close()


def test_the_operators_file_has_the_form_of_tools_yml(secure: Cluster) -> None:
    keys = keys_of_file(secure.home / "default/access/operator.yml")
    assert keys.access_key == "operator"
    until("a user of the operator", lambda: "operator" in secure.run("user", "list"))
