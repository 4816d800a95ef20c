"""The whole table of settings: every key of each kind of node, and its other spellings.

`rows(kind)[key]` is the row. Keys that work come from the sections that declare them, all others
from `upstream.toml`. The table is built on first use, so importing a section reads no file. A key
of both kinds of node may have a row for each (`listenPort`). Other spellings come from Apache's
earlier releases (`maped…` for `mapped…`) and from Java's names of fields
(`isScanAvailableNameSrv`).
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import NamedTuple, get_args

from rmqkit.settings.sections import Sections
from rmqkit.settings.table import Kind, Refusal, Row, Status, Type, Value, parse_text

KINDS: tuple[Kind, ...] = get_args(Kind)
KIND_NAMES: dict[Kind, str] = {"broker": "broker", "nameserver": "name server", "controller": "controller"}
#: names in `upstream.toml` for several kinds of node
_SEVERAL: Mapping[str, tuple[Kind, ...]] = {"both": KINDS, "controllers": ("nameserver", "controller")}

UPSTREAM = Path(__file__).with_name("upstream.toml")
_LINE = re.compile(r"(\S+): ([\w|]+)(?: = ([^\s].*?))?(?:, (refused|only): (.+))?")


class WorkingKey(NamedTuple):
    """A key that works, and the field that it sets."""

    section: str
    field: str
    row: Row
    kinds: tuple[Kind, ...]


@cache
def declared() -> tuple[WorkingKey, ...]:
    """Return every key that works."""
    found = []
    for each in fields(Sections):
        section = each.metadata
        for field in fields(section["make"]):
            if field.metadata:
                made = field.metadata
                row = made["row"](area=made["area"] or section["area"], feeds=f"{each.name}.{field.name}")
                found.append(WorkingKey(each.name, field.name, row, (made["only"],) if made["only"] else section["kinds"]))
    return tuple(found)


def _upstream() -> Iterator[tuple[str, Row]]:
    """Yield every other key, with the nodes that have it: a kind, or a name of `_SEVERAL`."""
    for area, by_status in tomllib.loads(UPSTREAM.read_text(encoding="utf-8")).items():
        for status, by_nodes in by_status.items():
            for nodes, by_reason in by_nodes.items():
                for reason, block in by_reason.items():
                    for line in block.splitlines():
                        yield nodes, _row(line, Status(status), area, reason)


def _row(line: str, status: Status, area: str, reason: str) -> Row:
    match = _LINE.fullmatch(line)
    assert match, line
    key, kind, default, word, values = match.groups()
    choices = tuple(kind.split("|")) if "|" in kind else ()
    type_ = Type.ENUM if choices else Type.STR if kind == "secret" else Type(kind)

    def value(text: str) -> Value:
        found = parse_text(type_, "" if text == '""' else text)
        assert found is not None, line
        return found

    refusal = None
    if word:
        listed = tuple(map(value, values.split(" ")))
        refusal = Refusal(why=reason, values=listed) if word == "refused" else Refusal(why=reason, unless=listed)
    return Row(
        key=key,
        type=type_,
        default=None if default is None else value(default),
        status=status,
        text=reason,
        area=area,
        choices=choices,
        refusal=refusal,
        secret=kind == "secret",
    )


@cache
def _tables() -> Mapping[Kind, dict[str, Row]]:
    tables: Mapping[Kind, dict[str, Row]] = {kind: {} for kind in KINDS}
    every = [(kind, each.row) for each in declared() for kind in each.kinds]
    every += [(kind, row) for nodes, row in _upstream() for kind in KINDS if kind in _SEVERAL.get(nodes, (nodes,))]
    for kind, row in every:
        assert row.key not in tables[kind], row.key
        tables[kind][row.key] = row
    return tables


def rows(kind: Kind) -> Mapping[str, Row]:
    """Return key -> row of every key that this kind of node has."""
    return _tables()[kind]


def every_key() -> list[str]:
    """Return the keys of all kinds of node."""
    return list(dict.fromkeys(key for kind in KINDS for key in rows(kind)))


@cache
def spellings() -> Mapping[str, str]:
    """Return spelling -> key.

    `maped` and `mapped` are interchangeable in every key that has either.
    """
    found = {
        "serverLoadBalancerEnabled": "serverLoadBalancerEnable",
        "memTableFlushInterval": "memTableFlushIntervalMs",
        "inBrokerContainer": "isInBrokerContainer",
        "brokerContainer": "isBrokerContainer",
        "scanAvailableNameSrv": "isScanAvailableNameSrv",
        "processReadEvent": "isProcessReadEvent",
    }
    for key in every_key():
        for one, other in (("mapped", "maped"), ("Mapped", "Maped"), ("maped", "mapped"), ("Maped", "Mapped")):
            if one in key:
                found[key.replace(one, other)] = key
    return found


def find(kind: Kind, written: str) -> Row | None:
    """Return the row of a key as it was written, None if this kind of node has no such key."""
    return rows(kind).get(spellings().get(written, written))
