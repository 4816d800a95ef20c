"""`rmqkit plugin ...`: lists plug-ins and creates plug-in projects."""

from pathlib import Path
from typing import Annotated

import typer

from rmqkit.cli import output
from rmqkit.cli.cluster_lookup import Json
from rmqkit.cli.commands import group

app = group("plugin")


@app.command(name="list")
def list_plugins(json: Json = False) -> None:
    """List everything that plug-ins register, including the built-in ones."""
    from rmqkit import plugins

    columns: output.Columns = {
        "hook": lambda row: row["hook"].removeprefix("rmqkit_"),
        "name": "name",
        "module": "module",
        "installed by": "distribution",
    }
    output.report([row._asdict() for row in plugins.load().rows()], columns, as_json=json)


@app.command(name="new")
def new_plugin(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the plug-in: lower-case letters, digits, - and _.")],
    hook: Annotated[
        str,
        typer.Option(
            help="What it adds: escape, lock, storage, fault-policy, filter, allocator, controller-log, fault, promise,"
            " handlers, duties, commands.",
        ),
    ],
    into: Annotated[Path, typer.Option(help="Create the project's folder in this folder.")] = Path("."),
    json: Json = False,
) -> None:
    """Create a plug-in project: a working module, and a test that runs its contract suite."""
    from rmqkit.cli import plugin_new

    made = plugin_new.make(name, hook, into)
    folder = made[0].parent
    if json:
        output.document(
            {"name": name, "hook": plugin_new.KINDS[hook].hook, "folder": str(folder), "files": list(map(str, made))}
        )
        return
    for path in made:
        print(path)
    output.note(f"next: cd {folder} && pytest, then pip install -e . && rmqkit plugin list")
