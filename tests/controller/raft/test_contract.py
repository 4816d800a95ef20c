"""The log `raft` fulfils the contract of a controller's log, alone and in groups."""

from rmqkit.controller.raft.controller_log import make_raft
from rmqkit.testing import ControllerLogContract


class TestRaft(ControllerLogContract):
    make = make_raft
    sizes = (1, 3, 5)
