"""`rmqkit plugin ...`: what is plugged in."""

from __future__ import annotations

from rmqkit.cli import output
from rmqkit.cli.commands import group
from rmqkit.cli.finding import Json

app = group("Plug-ins.")


@app.callback()
def plugin_group() -> None:
    """Plug-ins: what is installed and what it adds."""


@app.command(name="list")
def list_plugins(json: Json = False) -> None:
    """Everything that plug-ins register, the built-in ones included."""
    from rmqkit import plugins

    rows = plugins.load().rows()
    if json:
        output.document([row._asdict() for row in rows])
    else:
        hooks = [(row.hook.removeprefix("rmqkit_"), row.name, row.module, row.distribution) for row in rows]
        output.table(("hook", "name", "module", "installed by"), hooks)
