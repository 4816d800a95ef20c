"""The table of settings against Apache's classes and against the sections that it feeds."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from rmqkit import config
from rmqkit.settings.keys import KINDS, find, rows, spellings
from rmqkit.settings.sections import Sections
from rmqkit.settings.table import Kind, Row, Status, Type, parse, show
from tools.pages.settings import AREAS

UPSTREAM = json.loads((Path(__file__).parent / "upstream_keys.json").read_text())
# Keys that these classes have in the release 5.5.0 only, read by reflection from its jars.
ADDED = json.loads((Path(__file__).parent / "upstream_keys_added.json").read_text())

CLASSES: dict[Kind, tuple[str, ...]] = {
    "broker": (
        "BrokerConfig",
        "BrokerIdentity",
        "MessageStoreConfig",
        "NettyServerConfig",
        "NettyClientConfig",
        "AuthConfig",
    ),
    "nameserver": ("NamesrvConfig", "NettyServerConfig", "NettyClientConfig", "ControllerConfig", "JraftConfig"),
    "controller": ("NettyServerConfig", "NettyClientConfig", "ControllerConfig", "JraftConfig"),
}
# BrokerStartup.buildBrokerController, NamesrvStartup.parseCommandlineAndConfigFile and
# ControllerStartup.createControllerManager replace these initial values.
AT_START = {
    ("broker", "listenPort"): 10911,
    ("nameserver", "listenPort"): 9876,
    ("controller", "listenPort"): 19876,
    ("broker", "haListenPort"): 0,
}
# A name server and its controller share these keys; the name server's default counts.
CONTROLLERS = {"configBlackList", "configStorePath"}
# The environment variables behind these are not set by default.
UNSET = {"useTLS": False}
JAVA_TYPES = {"int": {Type.INT}, "long": {Type.LONG}, "double": {Type.DOUBLE}, "boolean": {Type.BOOL}}
TEXT_TYPES = {Type.STR, Type.PATH, Type.ENUM}

SECTIONS = {each.name: each.metadata["make"] for each in fields(Sections)}
PER_CLASS = [(kind, name) for kind, names in CLASSES.items() for name in names]


def test_the_list_of_upstream_keys_is_whole():
    counts = {name: len(keys) for name, keys in UPSTREAM.items() if name != "revision"}
    assert counts["BrokerConfig"] == 210
    assert counts["MessageStoreConfig"] == 191
    assert counts["NamesrvConfig"] == 22
    assert {name: len(keys) for name, keys in ADDED.items() if name != "release"} == {
        "BrokerConfig": 28,
        "MessageStoreConfig": 28,
    }


def expected_default(kind: Kind, key: str, row: Row, upstream: object) -> object:
    """Return the default that a row must have, given the initial value in Apache's class."""
    default = AT_START.get((kind, key), upstream)
    if default == {"depends on": "machine"}:
        return None
    if default == {"depends on": "environment"}:
        return UNSET[key] if key in UNSET else row.default if "${" in str(row.default) else "a reference to the environment"
    return default


@pytest.mark.parametrize(("kind", "name"), PER_CLASS)
def test_every_key_of_apache_has_a_row_with_its_type_and_default(kind: Kind, name: str):
    for key, upstream in {**UPSTREAM[name], **ADDED.get(name, {})}.items():
        row = find(kind, key)
        assert row is not None, key
        assert row.type in JAVA_TYPES.get(upstream["type"], TEXT_TYPES), key
        if name != "ControllerConfig" or key not in CONTROLLERS:
            assert row.default == expected_default(kind, key, row, upstream["default"]), key


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_says_what_became_of_its_key(kind: Kind):
    for row in rows(kind).values():
        assert bool(row.feeds) == (row.status is Status.WORKS), row.key
        assert row.feeds or not row.live, row.key
        assert bool(row.refusal) or row.status is not Status.REFUSED, row.key
        assert row.text, row.key
        assert row.area in AREAS, row.key


@pytest.mark.parametrize("kind", KINDS)
def test_no_path_and_no_address_is_live(kind: Kind):
    for row in rows(kind).values():
        if row.live:
            assert row.type is not Type.PATH, row.key
            assert not row.feeds.startswith(("paths.", "network.", "plugins.", "identity.broker")), row.key


@pytest.mark.parametrize("kind", KINDS)
def test_a_default_is_a_value_that_its_own_row_takes(kind: Kind):
    for row in rows(kind).values():
        if row.default is not None and "${" not in str(row.default):
            assert parse(row, show(row.default)) == row.default, row.key
            assert row.refusal is None or not row.refusal.hits(row.default), row.key


def test_every_field_has_a_key_unless_it_follows_from_others():
    keyless = [f"{name}.{field.name}" for name, make in SECTIONS.items() for field in fields(make) if not field.metadata]
    assert keyless == ["network.vip_listen_port", "plugins.values"]


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_made_by_hand_has_the_defaults_of_the_table(name: str):
    from_table = getattr(config.from_values("broker"), name)
    machine = {"broker_name"}  # the table takes it from the host name
    for field in fields(from_table):
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        if default is not MISSING and field.name not in machine:
            assert getattr(from_table, field.name) == default, field.name


def test_what_depends_on_the_home_folder_must_be_given():
    with pytest.raises(TypeError, match="kv_config_path"):
        config.NameserverSettings()


def test_sections_are_small():
    for name, make in SECTIONS.items():
        assert len(fields(make)) <= 15, name


def test_both_spellings_of_mapped_lead_to_the_row():
    assert spellings()["mapedFileSizeCommitLog"] == "mappedFileSizeCommitLog"
    assert spellings()["flushLeastPagesWhenWarmMappedFile"] == "flushLeastPagesWhenWarmMapedFile"
    for key in rows("broker"):
        if "apped" in key:
            assert find("broker", key.replace("apped", "aped")) is rows("broker")[key]


def test_no_spelling_hides_a_key():
    assert not [spelling for spelling in spellings() if any(spelling in rows(kind) for kind in KINDS)]
