"""Errors are one line with a suggestion and the right exit code, never a traceback."""

import signal
import sys

import pytest

from rmqkit.cli import main
from rmqkit.cli.errors import Interrupted


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working folder that is also the home."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RMQKIT_HOME", str(tmp_path))
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "says"),
    [("nameserver run -c absent.toml", "absent.toml"), ("broker run --set lisenPort=1", "did you mean listenPort?")],
)
def test_a_node_with_wrong_settings_does_not_start(shell, words, says):
    assert says in shell.outside.error(*words.split(), code=2)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("clutser", "no such command: clutser; did you mean cluster?"),
        ("cluster stauts", "no such command: stauts; did you mean status?"),
        ("cluster zzz", "no such command: zzz; see `rmqkit cluster --help`"),
        ("--vresion", "no such option: --vresion; did you mean --version?"),
        ("cluster up --gruops 2", "no such option: --gruops; did you mean --groups?"),
        ("send t x --tags a", "no such option: --tags; did you mean --tag?"),
        ("cluster up --groups two", "--groups"),
        ("cluster up --groups 0", "groups = 0: must be from 1 to 26"),
        ("cluster up --replicas 10", "replicas = 10: must be from 1 to 9"),
        ("cluster up ../x", "cannot be a cluster's name"),
        ("cluster up master", "selects nodes"),
        ("cluster up --set flushDiskTyp=SYNC_FLUSH", "did you mean flushDiskType?"),
        ("cluster up --set flushDiskType=MAYBE", "SYNC_FLUSH"),
        ("cluster up --set flushDiskType", "must be key=value"),
        ("cluster up --set listenPort=1", "--base-port"),
        ("cluster up --set brokerRole=SLAVE", "see --replicas"),
        ("cluster up --file absent.toml", "absent.toml"),
        ("cluster up --base-port 99", "between 1024 and 65535"),
        ("cluster kill a b c", "too many words"),
        ("cluster wait --for lunch", "--for lunch; must be ready, in-sync, acting, master-back"),
        ("cluster wait --for in-snyc", "did you mean in-sync?"),
        ("up", "did you mean `rmqkit cluster up`?"),
        ("status default", "did you mean `rmqkit cluster status`?"),
        ("explain TOPIC_NOT_EXIT", "did you mean TOPIC_NOT_EXIST?"),
        ("send", "TOPIC"),
        ("send t", "nothing to send"),
        ("send t x --size 3", "exclude each other"),
        ("send t - --count 3", "--count needs"),
        ("send t --file absent", "cannot read absent"),
        ("send t x --namesrv nowhere", "not an address"),
        ("send t x --property a --namesrv 127.0.0.1:1", "NAME=VALUE"),
        ("consume t --from nowhen", "--from nowhen"),
        ("consume t --format xml", "--format xml"),
        ("offset reset g t --to nowhen", "--to nowhen"),
        ("offset by-time t nowhen", "TIME nowhen"),
        ("topic create t --perm x", "--perm x"),
        ("config get brokerNam", "did you mean brokerName?"),
        ("config set brokerPermission", "KEY=VALUE"),
        ("config explain flushDiskTyp", "did you mean flushDiskType?"),
    ],
)
def test_a_wrong_command_line_is_exit_code_2_and_one_line(words, says, here, capsys):
    assert main.run_command(words.split()) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("error: ")
    assert told.err.count("\n") == 1
    assert says in told.err
    assert list(here.iterdir()) == []


def test_errors_of_the_parser_reach_the_shell(shell):
    told = shell.outside.error("cluster", "up", "--gruops", "2", code=2)
    assert told == "error: no such option: --gruops; did you mean --groups?"


@pytest.mark.parametrize(
    "words",
    [
        "cluster status",
        "cluster status --json",
        "cluster down",
        "cluster env",
        "cluster logs",
        "cluster wait",
        "cluster kill",
        "cluster stop nope",
        "cluster restart nope broker-a",
        "cluster pause master",
        "send t x",
        "consume t",
        "topic list",
        "group list",
        "offset show g",
        "config get brokerName",
    ],
)
def test_no_cluster_is_exit_code_3_and_says_how_to_start_one(words, here, capsys):
    assert main.run_command(words.split()) == 3
    assert "rmqkit cluster up" in capsys.readouterr().err
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("words", ["send t x"])
def test_nobody_at_the_address_is_exit_code_3(shell, words):
    assert "127.0.0.1:1" in shell.outside.error(*words.split(), "--namesrv", "127.0.0.1:1", code=3)
    assert "127.0.0.1:1" in shell.outside.error(*words.split(), code=3, env={"NAMESRV_ADDR": "127.0.0.1:1"})


def test_the_address_of_a_broker_is_no_name_server(up):
    broker = next(node["address"] for node in up.json("cluster", "status")["nodes"] if node["kind"] == "broker")
    for words in ("topic list", "send t x", "consume t"):
        told = up.error(*words.split(), "--namesrv", broker, code=1)
        assert f"no name server is at {broker}: " in told
        assert "correct --namesrv" in told
    assert "if that is a broker or a controller, correct --namesrv" in up.error(
        "config", "get", "serverWorkerThreads", "--node", "nameserver", "--namesrv", broker, code=1
    )


@pytest.mark.parametrize("words", ["", "cluster", "topic", "cluster up", "send", "broker run", "doctor"])
def test_help_lists_what_there_is(shell, words):
    text = shell.run(*words.split(), "--help").stdout
    assert text.startswith(f"Usage: rmqkit {words}".rstrip())


def test_usage_has_each_argument_in_one_pair_of_brackets(shell):
    for words, arguments in (("send", "TOPIC [BODY]"), ("cluster status", "[NAME]"), ("broker status", "[BROKER]")):
        usage = shell.run(*words.split(), "--help").stdout.splitlines()[0]
        assert usage.replace("{", "").replace("}", "") == f"Usage: rmqkit {words} [OPTIONS] {arguments}"


def test_help_names_no_command_of_later_versions(shell):
    assert "scale" not in shell.run("cluster", "--help").stdout


def test_help_loads_neither_rich_nor_psutil_nor_the_client(shell):
    program = (
        "import sys\nfrom rmqkit.cli import main\n"
        "try:\n main.run(['--help'])\nexcept SystemExit: pass\n"
        "unwanted = ('rich', 'psutil', 'rmqkit.api', 'rmqkit.broker.node', 'lark', 'rmqkit.cluster', "
        "'rmqkit.cli.data.send')\n"
        "print([name for name in unwanted if name in sys.modules])"
    )
    assert shell.outside.run(command=[sys.executable, "-c", program]).stdout.splitlines()[-1] == "[]"


def test_signals_that_the_parent_ignores_stay_ignored():
    """`nohup rmqkit …` outlives its terminal, but SIGTERM still ends it cleanly."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        with pytest.raises(SystemExit):
            main.run(["--version"])
        assert signal.getsignal(signal.SIGINT) is signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGTERM)
    finally:
        for number in numbers:
            signal.signal(number, before[number])


def test_the_version(shell):
    import rmqkit

    assert shell.run("--version").stdout == f"rmqkit {rmqkit.__version__}\n"


def test_clusters_without_any(shell):
    assert shell.json("cluster", "list") == []
    assert "rmqkit cluster up" in shell.run("cluster", "list").stderr
