"""Every command has what the page of all commands needs."""

from tools.pages.cli import every_command


def test_every_command_says_what_it_does_and_takes_json():
    for path, command in every_command():
        assert command.help, path
        options = {option for param in command.params for option in param.opts}
        # A node that runs in the foreground reports nothing.
        assert "--json" in options or path in ("nameserver run", "broker run", "controller run"), path
