"""Every command is whole enough for the page of all commands."""

from tools.pages.cli import every_command


def test_every_command_says_what_it_does_and_takes_json():
    for path, command in every_command():
        assert command.help, path
        options = {option for param in command.params for option in param.opts}
        # A node in the foreground reports nothing.
        assert "--json" in options or path in ("nameserver run", "broker run"), path
