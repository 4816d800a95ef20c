"""The command line in a real terminal."""

import pytest

from tests.api.until import until
from tests.cli.conftest import free_base


@pytest.mark.long
def test_the_banner_ends_with_what_to_do_next(shell):
    with shell.terminal("cluster", "up", "--any-port", "--base-port", free_base()) as screen:
        screen.expect("cluster default is up")
        screen.expect("broker-a-0")
        screen.expect("name servers  127.0.0.1:")
        screen.expect(f"data          {shell.home}/default")
        screen.expect("next:")
        screen.expect("rmqkit send hello")
        screen.expect("rmqkit consume hello")
        screen.expect("rmqkit cluster status")
        assert screen.process.wait() == 0


def test_status_is_a_table_with_colours(up):
    with up.terminal("cluster", "status") as screen:
        screen.expect("node")
        screen.expect("broker-a-0.*\x1b\\[32mup")
        assert screen.process.wait() == 0


@pytest.mark.long
def test_status_is_watched_until_ctrl_c(up):
    with up.terminal("cluster", "status", "--watch") as screen:
        screen.expect("cluster default")
        screen.expect("broker-a-0")
        screen.expect("broker-a-0")
        screen.process.sendintr()
        assert screen.process.wait() == 0


def test_messages_are_followed_until_ctrl_c(up):
    up.run("send", "followed", "first")
    with up.terminal("consume", "followed", "--follow") as screen:
        screen.expect("broker-a:\\d+  0  .*first")
        up.run("send", "followed", "second", "--key", "k2")
        screen.expect("keys=k2  second")
        screen.process.sendintr()
        screen.expect("interrupted")
        assert screen.process.wait() == 130


def test_control_characters_do_not_reach_the_terminal(up):
    up.run("send", "nasty", "-", input="\x1b[2Jgone\n")
    with up.terminal("consume", "nasty") as screen:
        screen.expect_exact("\\x1b[2Jgone")
        screen.expect("1 message\r")
        assert screen.process.wait() == 0


@pytest.mark.long
def test_long_work_shows_its_progress(up):
    with up.terminal("send", "progress", "--count", "30", "--rate", "40") as screen:
        screen.expect("sent \\d+ of 30")
        screen.expect("30 sent in")
        assert screen.process.wait() == 0


def test_logs_are_followed(up):
    with up.terminal("cluster", "logs", "broker-a", "--follow", "--lines", "1") as screen:
        screen.expect("\n")
        up.run("topic", "create", "logged")
        up.run("config", "set", "traceOn=true")
        screen.expect("config-updated")
        screen.process.sendintr()
        assert screen.process.wait() == 0


@pytest.mark.long
def test_completion_offers_commands_selectors_and_topics(up):
    up.run("send", "completed", "x")

    def offered(*words):
        line = " ".join(["rmqkit", *words])
        environment = {"_RMQKIT_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words))}
        return up.outside.run(env=environment).stdout.split()

    assert "cluster" in offered("clu")
    assert set(offered("cluster", "sta")) == {"status", "start"}
    assert {"master", "broker-a-0", "default"} <= set(offered("cluster", "kill", ""))
    # It offers nothing if nodes do not answer within 500 ms, as on a busy machine.
    until(lambda: offered("send", "comple") == ["completed"])
    assert "flushDiskType=" in offered("cluster", "up", "--set", "flushDi")
