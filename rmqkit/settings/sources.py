"""Reads settings from TOML files, Apache `.conf` files, and `key=value` on the command line.

Each source becomes a list of `Setting`s: key, value, and place. This module checks only the format
of a file, not keys or values.

A TOML file has keys at the top or under `[broker]` / `[nameserver]`, and `[plugin.NAME]` tables.
The table of the other kind of node is skipped, so that one file can serve both. In a `.conf` file
the keys of plug-ins are `plugin.NAME.KEY`.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from rmqkit.errors import ConfigError
from rmqkit.settings import properties
from rmqkit.settings.keys import KINDS, rows
from rmqkit.settings.table import Kind
from rmqkit.suggestions import suggest

PLUGIN = "plugin"
FILE_SIZE_MAX = 1_048_576


class Setting(NamedTuple):
    """One key as it was written.

    `value` is text, or TOML's value; `where` continues a sentence (" in FILE line 3").
    """

    key: str
    value: object
    where: str


def from_file(path: str | Path, kind: Kind) -> list[Setting]:
    """Return the settings in a file for this kind of node.

    Raises ConfigError if it cannot be read or parsed.
    """
    text = file_text(Path(path))
    if Path(path).suffix.lower() == ".toml":
        return list(from_toml(text, str(path), kind))
    try:
        return [Setting(item.key, item.value, f" in {path} line {item.line}") for item in properties.read(text)]
    except ValueError as error:
        raise ConfigError(f"config: {path} is not a valid property file: {error}") from None


def file_text(path: Path) -> str:
    """Return the text of a configuration file. Raises ConfigError."""
    try:
        if path.stat().st_size > FILE_SIZE_MAX:
            raise ConfigError(f"config: {path} is larger than 1 MiB, too large for a configuration file")
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"config: cannot read {path}: {error.strerror}") from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return raw.decode("latin-1")  # Java reads every property file in this encoding


def from_toml(text: str, name: str, kind: Kind) -> Iterator[Setting]:
    """Yield the settings in a TOML text for this kind of node. Raises ConfigError."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"config: {name} is not valid TOML: {error}") from None
    own: Mapping[str, object] = {}
    for key, value in document.items():
        if key == PLUGIN and isinstance(value, dict):
            yield from plugin_settings(value, text, name)
        elif not isinstance(value, dict):
            yield Setting(key, value, place(text, name, key))
        elif key == kind:
            own = value
        elif key not in KINDS:
            yield from flattened(key, value, text, name, kind)
    for key, value in own.items():
        if key == PLUGIN and isinstance(value, dict):
            yield from plugin_settings(value, text, name)
        elif isinstance(value, dict):
            yield from flattened(key, value, text, name, kind)
        else:
            yield Setting(key, value, place(text, name, key))


def flattened(key: str, table: Mapping[str, object], text: str, name: str, kind: Kind) -> Iterator[Setting]:
    """Yield keys that contain dots (`tls.server.mode`), which TOML reads as tables.

    Raises ConfigError for any other table.
    """
    if key != "tls":
        hint = suggest(key, rows(kind), "tables are [broker], [nameserver], [controller] and [plugin.NAME]")
        raise ConfigError(f"config: unknown table [{key}] in {name}{line_of(text, key)}{hint}")
    for part, value in table.items():
        whole = f"{key}.{part}"
        if isinstance(value, dict):
            yield from (
                Setting(item.key, item.value, item.where)
                for item in flattened("tls", {f"{part}.{k}": v for k, v in value.items()}, text, name, kind)
            )
        else:
            yield Setting(whole, value, place(text, name, part.rpartition(".")[2]))


def plugin_settings(table: Mapping[str, object], text: str, name: str) -> Iterator[Setting]:
    """Yield the settings in `[plugin.NAME]` tables. Raises ConfigError."""
    for plugin, values in table.items():
        if not isinstance(values, dict):
            raise ConfigError(f"config: {PLUGIN}.{plugin} in {name} must be a table [plugin.{plugin}]")
        for key, value in values.items():
            yield Setting(f"{PLUGIN}.{plugin}.{key}", value, place(text, name, key))


def line_of(text: str, key: str) -> str:
    """Return " line N" of a key or table head, "" if it is not found because of unusual syntax."""
    pattern = re.compile(rf"\s*(?:\[+\s*)?(?:[\w.]+\.)?[\"']?{re.escape(key)}[\"']?\s*[=.\]]")
    for number, line in enumerate(text.splitlines(), 1):
        if pattern.match(line):
            return f" line {number}"
    return ""


def place(text: str, name: str, key: str) -> str:
    """Return " in FILE line N" for a key."""
    return f" in {name}{line_of(text, key)}"


def from_overrides(overrides: Iterable[str]) -> list[Setting]:
    """Return the settings in `key=value` texts. Raises ConfigError for one without `=`."""
    settings = []
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"config: {text!r} in --set: must be key=value")
        settings.append(Setting(key.strip(), value.strip(), " in --set"))
    return settings
