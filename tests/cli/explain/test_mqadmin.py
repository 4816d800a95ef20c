"""`explain` maps every mqadmin command to ours, and all of those exist."""

import pytest

from rmqkit.cli.explain import mqadmin
from tools.pages.cli import every_command

TABLE = mqadmin.table()
COMMANDS = {path for path, _ in every_command()}


def words(line: str) -> str:
    """Return the command of a line without arguments and options."""
    return " ".join(word for word in line.split() if word == word.lower() and not word.startswith("-"))


@pytest.mark.parametrize("line", sorted(set(TABLE.commands.values())))
def test_the_command_exists(line):
    assert any(words(line).startswith(command) for command in COMMANDS), line


def test_each_command_of_mqadmin_is_listed_once():
    names = [*TABLE.commands, *TABLE.later, *TABLE.never]
    assert len(names) == len(set(names)) == 96  # the commands of 5.5.0


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("clusterList", "clusterList is a command of mqadmin; here it is `rmqkit cluster status`"),
        ("TOPICLIST", "topicList is a command of mqadmin; here it is `rmqkit topic list`"),
        ("copyAcl", "copyAcl is a command of mqadmin; rmqkit has no such command (docs/mqadmin.md lists all)"),
        ("electMaster", "here it is `rmqkit controller elect BROKER_NAME ID`"),
        ("clustr", "no such command: clustr; did you mean cluster?"),
    ],
)
def test_a_name_of_mqadmin_is_answered_with_ours(shell, name, answer):
    assert answer in shell.error(name, code=2)


def test_a_process_answers_a_name_of_mqadmin(shell):
    assert "here it is `rmqkit topic list`" in shell.outside.error("TOPICLIST", code=2)
