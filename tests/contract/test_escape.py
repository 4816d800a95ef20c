"""The public contract suite of escape strategies, run on the built-in ones."""

from rmqkit import plugins
from rmqkit.testing import EscapeContract

BUILT_IN = plugins.load(entry_points=False)


class TestNone(EscapeContract):
    make = BUILT_IN.escape_strategies["none"]
    puts = False


class TestLocal(EscapeContract):
    make = BUILT_IN.escape_strategies["local"]
    same_process = True


class TestRemote(EscapeContract):
    make = BUILT_IN.escape_strategies["remote"]


class TestAutoInOneProcess(EscapeContract):
    make = BUILT_IN.escape_strategies["auto"]
    same_process = True


class TestAuto(EscapeContract):
    make = BUILT_IN.escape_strategies["auto"]
