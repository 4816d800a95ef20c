"""The page of all commands is what the commands say."""

from pathlib import Path

from rmqkit.cli.reference import every_command, page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"


def test_the_page_of_all_commands_is_up_to_date():
    assert PAGE.read_text() == page(), "run: python -m rmqkit.cli.reference > docs/cli.md"


def test_every_command_says_what_it_does_and_takes_json():
    for path, command in every_command():
        assert command.help, path
        options = {option for param in command.params for option in param.opts}
        # A node in the foreground reports nothing; a reader's formats are its own.
        assert "--json" in options or path in ("nameserver run", "broker run"), path
