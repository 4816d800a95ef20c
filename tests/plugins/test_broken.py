"""An error in a plug-in, or a wrong name in a configuration, is reported in one precise line."""

import subprocess
import sys

import pytest

from rmqkit import config, plugins
from rmqkit.api import choices
from rmqkit.errors import ConfigError, RmqkitError
from rmqkit.plugins import PluginError
from rmqkit.testing import SimBroker

ENGINE = """
    @hookimpl
    def rmqkit_storage_engines():
        return {"%s": %s}
"""
RUN = """
    @hookimpl
    def rmqkit_duties():
        return {"box": %s}
"""


def one_line(error: Exception, *words: str) -> None:
    text = str(error)
    assert len(text.splitlines()) == 1
    for word in words:
        assert word in text, text


# --- while plug-ins are loaded

BROKEN = {
    "a name that is built in": (ENGINE % ("mapped", "dict"), ["'mapped'", "rmqkit.store.plugin", "broken"]),
    "a misspelt hook": (
        "@hookimpl\ndef rmqkit_storage_engine():\n    return {}",
        ["broken", "rmqkit_storage_engine is no hook of rmqkit.hookspecs", "did you mean rmqkit_storage_engines?"],
    ),
    "a misspelt hook without its marker": (
        "def rmqkit_dutys():\n    return {}",
        ["broken", "rmqkit_dutys is no hook of rmqkit.hookspecs", "did you mean rmqkit_duties?"],
    ),
    "a hook unlike any": (
        "@hookimpl\ndef on_message():\n    return {}",
        ["broken", "on_message is no hook of rmqkit.hookspecs", "rmqkit_commands"],
    ),
    "a hook without its marker": (
        "def rmqkit_duties():\n    return {}",
        ["broken", "rmqkit_duties lacks the decorator @hookimpl of rmqkit.hookspecs"],
    ),
    "a hook that wants arguments": (
        "@hookimpl\ndef rmqkit_duties(broker):\n    return {}",
        ["broken", "rmqkit_duties", "broker"],
    ),
    "a hook that fails": (
        "@hookimpl\ndef rmqkit_duties():\n    raise KeyError('x')",
        ["broken", "rmqkit_duties failed: KeyError: 'x'"],
    ),
    "no mapping": (
        "@hookimpl\ndef rmqkit_duties():\n    return ['heart']",
        ["broken", "rmqkit_duties of rmqkit.hookspecs must return a mapping, not ['heart']"],
    ),
    "a factory that is not callable": (RUN % "7", ["broken", "rmqkit_duties of rmqkit.hookspecs", "not 'box': 7"]),
    "a name that is no text": (
        "@hookimpl\ndef rmqkit_duties():\n    return {7: dict}",
        ["broken", "rmqkit_duties of rmqkit.hookspecs", "not 7: <class 'dict'>"],
    ),
    "an import that fails": ("import a_module_nobody_has", ["broken (broken-dist)", "'a_module_nobody_has'"]),
    "an error of several lines": ("raise ValueError('one\\n  two')", ["broken", "ValueError: one two"]),
    "no such module": ("", ["no_such_box (broken-dist)", "No module named 'no_such_box'"]),
    "no such object": ("", ["broken:thing (broken-dist)", "has no attribute 'thing'"]),
}
VALUES = {"no such module": "no_such_box", "no such object": "broken:thing"}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_plug_in_is_one_line(install, case):
    source, words = BROKEN[case]
    install("broken", source, value=VALUES.get(case, ""))
    with pytest.raises(PluginError) as caught:
        plugins.load()
    one_line(caught.value, *words)


def test_two_plug_ins_with_one_name(install):
    install("one", RUN % "dict")
    install("two", RUN % "dict")
    with pytest.raises(PluginError) as caught:
        plugins.load()
    one_line(caught.value, "rmqkit_duties", "'box'", "one", "two")


def test_the_same_name_under_two_hooks_is_one_plug_in(install):
    install("pair", RUN % "lambda broker, settings: (lambda now_ms: None)" + "\n" + (ENGINE % ("box", "dict")))
    found = plugins.load()
    assert "box" in found.duties
    assert "box" in found.storage_engines


def test_an_object_can_be_a_plug_in(install):
    install(
        "boxes",
        """
        class Boxes:
            @hookimpl
            def rmqkit_duties(self):
                return {"box": dict}

        boxes = Boxes()
        """,
        value="boxes:boxes",
    )
    assert plugins.HookRow("rmqkit_duties", "box", "boxes:boxes", "boxes-dist") in plugins.load().rows()


def test_a_hook_may_have_another_function_s_name(install):
    install("named", "@hookimpl(specname='rmqkit_duties')\ndef mine():\n    return {'box': dict}")
    assert "box" in plugins.load().duties


# --- when a factory is called


def broker_error(*settings: str) -> RmqkitError:
    with pytest.raises(RmqkitError) as caught:
        SimBroker(*settings)
    assert not isinstance(caught.value, ConfigError)
    return caught.value


def test_an_engine_that_lacks_methods(install):
    install("broken", ENGINE % ("half", "lambda parts: type('Half', (), {'append': None, 'ready': False})()"))
    error = broker_error("storageEngine=half")
    one_line(error, "plug-in broken: storage engine 'half' is no StorageEngine of rmqkit.store.contract: Half lacks")
    lacks = str(error).partition("lacks ")[2].split(", ")
    assert {"settle", "read", "truncate", "offset_max", "failed"} <= set(lacks)
    assert not {"append", "ready"} & set(lacks)


def test_an_engine_whose_factory_fails(install):
    install("broken", ENGINE % ("half", "lambda: None"))
    one_line(broker_error("storageEngine=half"), "plug-in broken: storage engine 'half' failed: TypeError:")


def test_handlers_that_are_none(install):
    install("broken", "@hookimpl\ndef rmqkit_handlers():\n    return {'box': lambda settings: [settings]}")
    one_line(
        broker_error("plugins=box"), "plug-in broken: handlers 'box' is no Handlers of rmqkit.runtime.calls: it is [{}]"
    )


def test_a_request_code_that_is_taken(install):
    install(
        "broken",
        """
        from rmqkit.access.rules import any_user
        from rmqkit.runtime.calls import Handlers
        from rmqkit.wire.schema import NoFields

        def make(settings):
            rows = Handlers()
            rows.handles(11, NoFields, access=any_user)(lambda broker, call: call.ok())
            return rows

        @hookimpl
        def rmqkit_handlers():
            return {"box": make}
        """,
    )
    one_line(
        broker_error("plugins=box"), "request code 11 (PULL_MESSAGE)", "rmqkit.broker.handlers.messages.pull", "broken"
    )


def test_a_duty_that_cannot_be_called(install):
    install("broken", RUN % "lambda broker, settings: 'soon'")
    one_line(broker_error("plugins=box"), "plug-in broken: duty 'box' is no Run of rmqkit.runtime.duties: 'soon'")


def test_a_policy_and_an_allocator_without_their_methods(install):
    install(
        "broken",
        """
        @hookimpl
        def rmqkit_fault_policies():
            return {"box": object}

        @hookimpl
        def rmqkit_allocators():
            return {"box": object}
        """,
    )
    with pytest.raises(PluginError) as caught:
        choices.choose_fault_policy("box")
    one_line(caught.value, "plug-in broken: fault policy 'box' is no FaultPolicy", "object lacks pick, update")
    with pytest.raises(PluginError) as caught:
        choices.choose_allocator("box")
    one_line(caught.value, "plug-in broken: allocator 'box' is no Allocator", "object lacks name, allocate")


def test_a_factory_s_own_error_passes(install):
    """The error says what is wrong with the plug-in's settings, so it is not wrapped."""
    source = """
    from rmqkit.errors import ConfigError

    def make(settings):
        raise ConfigError("plugin.own.size = x: must be a number")

    @hookimpl
    def rmqkit_handlers():
        return {"own": make}
    """
    install("own", source)
    with pytest.raises(ConfigError) as caught:
        SimBroker("plugins=own")
    assert str(caught.value) == "plugin.own.size = x: must be a number"


# --- names in a configuration


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["storageEngine=maped"], ["storageEngine=maped", "did you mean mapped?"]),
        (["plugins=bx"], ["plugins=bx", "did you mean box?"]),
        (["plugins=box;zzz"], ["plugins=zzz", "there are: box"]),
        (["plugin.boxs.size=1"], ["plugin.boxs: no plug-in", "did you mean box?"]),
        (["plugins=mapped"], ["plugins=mapped: no plug-in of that name"]),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(install, settings, words):
    install("boxed", RUN % "dict")
    with pytest.raises(ConfigError) as caught:
        plugins.load().broker_parts(config.load([], settings))
    one_line(caught.value, *words)


def test_an_unknown_policy_or_allocator_is_answered_with_the_nearest():
    with pytest.raises(ConfigError) as caught:
        choices.choose_fault_policy("latenzy")
    one_line(caught.value, "fault_policy=latenzy", "did you mean latency?")
    with pytest.raises(ConfigError) as caught:
        choices.choose_allocator("averag")
    one_line(caught.value, "allocator=averag", "did you mean average?")


def test_a_plug_in_named_twice_is_switched_on_once(install):
    install("boxed", RUN % "lambda broker, settings: (lambda now_ms: None)")
    assert SimBroker("plugins=box;box").node.duties.names.count("plugin-box") == 1


# --- a node process


def start_node(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "rmqkit.process", "--set", "listenPort=0", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("source", "settings", "code", "words"),
    [
        ("import a_module_nobody_has", [], 1, ["plug-in broken (broken-dist)", "'a_module_nobody_has'"]),
        (ENGINE % ("mapped", "dict"), [], 1, ["'mapped'", "rmqkit.store.plugin", "broken"]),
        (RUN % "7", [], 1, ["plug-in broken", "rmqkit_duties of rmqkit.hookspecs"]),
        (ENGINE % ("half", "dict"), ["storageEngine=half"], 1, ["plug-in broken: storage engine 'half'"]),
        (RUN % "lambda broker, settings: 'soon'", ["plugins=box"], 1, ["plug-in broken: duty 'box' is no Run"]),
        (RUN % "dict", ["plugins=bx"], 2, ["plugins=bx", "did you mean box?"]),
    ],
    ids=["import", "duplicate", "no factory", "engine", "duty", "unknown"],
)
def test_a_node_does_not_start_with_a_broken_plug_in(install, tmp_path, source, settings, code, words):
    install("broken", source)
    sets = [part for setting in (f"storePathRootDir={tmp_path}/store", *settings) for part in ("--set", setting)]
    done = start_node(*sets, "--log-file", str(tmp_path / "log"))
    assert done.returncode == code
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("error: ")
    for word in words:
        assert word in done.stderr


def test_the_command_line_says_it_and_goes_on(install):
    """A broken plug-in breaks only the commands about plug-ins."""
    install("broken", "import a_module_nobody_has")
    command = [sys.executable, "-m", "rmqkit.cli.main"]
    listed = subprocess.run([*command, "plugin", "list"], capture_output=True, text=True, check=False)
    assert (listed.returncode, listed.stdout, len(listed.stderr.splitlines())) == (1, "", 1)
    assert "plug-in broken (broken-dist)" in listed.stderr
    helped = subprocess.run([*command, "--help"], capture_output=True, text=True, check=False)
    assert helped.returncode == 0
    assert "plug-in broken (broken-dist)" in helped.stderr
    assert "consume" in helped.stdout
