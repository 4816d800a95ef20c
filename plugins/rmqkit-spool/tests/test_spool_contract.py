"""The public contract suite on the spool, alone and beside another master in one process."""

from rmqkit.testing import EscapeContract
from rmqkit_spool.plugin import rmqkit_escape_strategies


class TestSpool(EscapeContract):
    make = rmqkit_escape_strategies()["spool"]
    keeps = True


class TestSpoolInOneProcess(EscapeContract):
    make = rmqkit_escape_strategies()["spool"]
    keeps = True
    same_process = True
