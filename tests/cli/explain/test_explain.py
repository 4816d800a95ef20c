"""`explain`: all codes and remarks are known, and a node is explained by its own reports."""

import ast
import json
from pathlib import Path

import pytest

from rmqkit.cli import main
from rmqkit.cli.explain import command
from rmqkit.cli.explain.codes import load, requests, responses
from rmqkit.cli.explain.remarks import find, remarks
from rmqkit.wire.codes import OwnRequestCode, RequestCode, ResponseCode

ROOT = Path(__file__).resolve().parents[3] / "rmqkit"
#: calls whose text arguments are remarks
ANSWERS = {"error", "Refused", "Response"}
#: texts with fewer letters are not looked up
LETTERS_MIN = 12


def test_every_code_is_explained():
    assert list(responses()) == list(ResponseCode)
    assert list(requests()) == [*RequestCode, *OwnRequestCode]


def remarks_of_nodes():
    """Yield every remark that a node may send: literals, constants of the module, and f-strings
    without their values."""
    for folder in ("broker", "container", "nameserver", "runtime"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            tree = ast.parse(path.read_text())
            constants = {_name(node.targets[0]): node.value for node in tree.body if isinstance(node, ast.Assign)}
            for node in ast.walk(tree):
                if isinstance(node, ast.Call) and _name(node.func) in ANSWERS and not _is_log(node.func):
                    for argument in [*node.args, *(each.value for each in node.keywords if each.arg == "remark")]:
                        for text in _texts(argument, constants):
                            if sum(map(str.isalpha, text)) >= LETTERS_MIN:
                                yield path.name, text


def _name(func):
    return func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")


def _is_log(func):
    return isinstance(func, ast.Attribute) and _name(func.value) == "log"


def _texts(node, constants):
    if isinstance(node, ast.Name):
        node = constants.get(node.id)
    if isinstance(node, ast.IfExp):
        return [text for part in (node.body, node.orelse) for text in _texts(part, constants)]
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        return ["".join(part.value if isinstance(part, ast.Constant) else "7" for part in node.values)]
    return []


def test_every_fixed_text_of_our_nodes_is_explained():
    told = list(remarks_of_nodes())
    assert len(told) > 40
    missing = [(where, text) for where, text in told if not [row for row in find(text) if row.text.strip(" {}:")]]
    assert not missing, "give rmqkit/cli/explain/remarks.toml a row for: " + "\n".join(map(str, missing))


def test_the_table_of_remarks_follows_its_schema():
    table = load("remarks.toml")
    rows, advice = table["remark"], table["advice"]
    for row in rows:
        assert set(row) in ({"text", "cause", "do"}, {"text", "cause", "advice"}), row
        assert all(isinstance(value, str) and value for value in row.values()), row
    assert set(table) == {"advice", "remark"}
    assert {row["advice"] for row in rows if "advice" in row} == set(advice), "an advice is missing or unused"
    texts = [row["text"] for row in rows]
    assert [text for text in texts if texts.count(text) > 1] == []


def test_the_table_of_codes_follows_its_schema():
    table = load("codes.toml")
    assert set(table) == {"response", "request", "own"}
    for name, row in table["response"].items():
        assert set(row) == {"meaning", "do"}, name
    for name, text in [*table["request"].items(), *((n, t) for n, row in table["response"].items() for t in row.values())]:
        assert text, name


def test_each_remark_is_found_by_its_own_text():
    for row in remarks():
        assert row in find(row.text.replace("{}", "x")), row.text
        assert row.cause.endswith(".")
        assert row.do.endswith((".", "?"))


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (
            "CODE: 17  DESC: topic[orders] not exist, apply first please!\nFor more information",
            "topic[{}] not exist, apply",
        ),
        ("apply first please", "topic[{}] not exist, apply"),
        ("org.apache...: wait response on the channel </1.2.3.4:10911> timeout, 3000(ms)", "wait response"),
        ("No topic route info in name server for the topic: x\nSee https://", "No topic route info"),
        ("[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: 200ms", "[TIMEOUT_CLEAN"),
        ('write-failed error="the commit log could not be written: No space left on device"', "the commit log could not"),
        ('reason="the disk is 100 % full; puts are accepted again at 85 %"', "the disk is {} % full"),
        ('cannot start reason="the commit log is damaged: /a/0 has 1 bytes where 2 are configured', "the commit log is"),
    ],
)
def test_a_line_of_a_log_leads_to_its_remark(asked, text):
    assert find(asked)[0].text.startswith(text)


def said(capsys, *words, code=0):
    assert main.run_command(["explain", *words]) == code
    told = capsys.readouterr()
    return told.out or told.err


def test_codes_by_number_and_by_name(capsys):
    told = said(capsys, "17")
    assert "17 TOPIC_NOT_EXIST (response)" in told
    assert "17 UPDATE_AND_CREATE_TOPIC (request)" in told
    assert "answered by: broker" in told
    assert "FLOW_CONTROL" in said(capsys, "flow_control")
    assert "no rmqkit node" in said(capsys, "QUERY_BROKER_OFFSET")
    assert "neither a request nor a response code" in said(capsys, "99999", code=2)
    assert "rmqkit topic create" in said(capsys, "apply", "first")
    assert "neither a code nor a known text" in said(capsys, "what a strange thing to say", code=2)


@pytest.mark.parametrize(
    "line",
    [
        "older-table-read",
        "older-table-read reason=x",
        "2026-07-18 12:34:56.789 WARNING broker-a-0 older-table-read reason=config/topics.json",
        '{"ts":"2026-07-18T10:34:56.789Z","level":"WARNING","node":"broker-a-0","event":"older-table-read","fields":{}}',
    ],
)
def test_an_event_by_its_name_or_by_a_line_of_a_log(capsys, line):
    assert "older-table-read (event)\n  meaning  A table in `config/` is damaged" in said(capsys, line)


def test_events_of_several_words_with_a_remark_and_mistyped(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("RMQKIT_HOME", str(tmp_path))
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    told = said(capsys, 'cannot start reason="the commit log is damaged: /a/0 has 1 bytes"')
    assert told.index("cannot start (event)") < told.index("the commit log is damaged")
    assert "...-copied (event)" in said(capsys, "groups-copied")
    assert "metadata-copied (event)" in said(capsys, "metadata-copied")
    assert json.loads(said(capsys, "serving", "--json"))["event"]["event"] == "serving"
    assert "did you mean older-table-read?" in said(capsys, "older-table-reed", code=2)


def seen(config=None, facts=None, topic_perm=6, route_perm=6):
    return command.BrokerSnapshot(config or {}, facts or {}, topic_perm, route_perm)


@pytest.mark.parametrize(
    ("broker", "what", "why"),
    [
        (seen(facts={"brokerActive": "false"}), "every message", "not active"),
        (seen({"brokerPermission": "4"}), "every message", "lacks 2"),
        (seen({"brokerPermission": "2"}), "every pull", "lacks 4"),
        (seen({"brokerRole": "SLAVE"}), "every message", "slave"),
        (seen(facts={"replicationWanted": "2", "replicationInSync": "1"}), "every message", "in sync"),
        (seen(facts={"commitLogDiskRatio": "0.97"}), "every message", "97%"),
        (seen(route_perm=4), "messages: clients do not send", "add-write-perm"),
        (seen(route_perm=None), "messages: clients do not find", "not registered"),
        (seen({"autoCreateTopicEnable": "false"}), "messages to unknown topics", "topic create"),
        (seen({"autoCreateSubscriptionGroup": "false"}), "consumers of unknown groups", "group create"),
        (seen({"enablePropertyFilter": "false"}), "SQL92", "enablePropertyFilter"),
        (seen({"rejectTransactionMessage": "true"}), "transactional", "rejectTransactionMessage"),
        (seen({"timerWheelEnable": "false"}), "messages with an exact delivery time", "timerWheelEnable"),
        (seen({"maxMessageSize": "10"}), "larger messages", "10 bytes"),
        (
            seen(facts={"roleOnline": "isolated", "roleWhy": "it was stalled"}),
            "all requests of clients",
            "isolated: it was stalled",
        ),
        (seen(facts={"role": "slave", "roleOnline": "online"}), "queue locks", "acting master"),
    ],
)
def test_what_a_broker_refuses_follows_from_what_it_says(broker, what, why):
    rules = [rule for rule in command.RULES if rule.holds(broker)]
    assert len(rules) == 1
    assert rules[0].refuses.startswith(what)
    assert why in rules[0].why(broker)


@pytest.mark.parametrize("role", ["acting", "slave"])
def test_a_group_without_its_master_is_read_only_and_nobody_shall_change_that(role):
    node = seen({"brokerRole": "SLAVE"}, {"role": role, "roleOnline": "online"}, route_perm=4)
    refused = [rule.refuses for rule in command.RULES if rule.holds(node)]
    assert "every message" in refused
    assert not [each for each in refused if each.startswith("messages: clients")]


def test_a_broker_of_apache_s_that_is_well_refuses_nothing():
    assert [rule for rule in command.RULES if rule.holds(seen({"brokerPermission": "6"}))] == []


def test_nodes_of_the_running_cluster(up):
    node = up.json("explain", "broker-a")["node"]
    assert (node["kind"], node["broker_name"], node["state"]) == ("broker", "broker-a", "up")
    assert {"larger messages"} <= {each["what"] for each in node["refuses"]}
    up.run("broker", "wipe-write-perm", "broker-a")
    assert "shows" not in up.run("explain", "broker-a-0").stdout
    assert "read-only" in up.run("explain", "broker-a-0").stdout
    up.run("broker", "add-write-perm", "broker-a")
    assert up.json("explain", "ns-0")["node"]["facts"]["brokers"] == "2"
    assert up.json("explain", "nameserver")["node"]["kind"] == "nameserver"
    assert "not a code, a known text, or a node" in up.error("explain", "broker-zz", code=2)


def test_a_node_is_looked_for_in_the_cluster_that_is_meant(up):
    """Nodes of different clusters have the same names; NAMESRV_ADDR selects the cluster."""
    elsewhere = {**up.environment, "NAMESRV_ADDR": "127.0.0.1:1"}
    assert "no name server answers" in up.run("explain", "broker-a-0", env=elsewhere, code=3).stderr
    here = {**up.environment, "NAMESRV_ADDR": up.json("cluster", "status")["namesrv"]}
    assert "broker-a-0 is a broker at" in up.run("explain", "broker-a-0", env=here).stdout


def test_a_node_that_is_paused_says_so(up):
    up.run("cluster", "pause", "broker-a")
    try:
        assert "cluster resume" in up.run("explain", "broker-a-0").stdout
    finally:
        up.run("cluster", "resume", "broker-a")
