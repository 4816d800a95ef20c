"""The public contract suite of lock modes, on a single broker and in a group."""

from rmqkit.testing import LockModeContract
from rmqkit_fencing.plugin import _mode


class TestFencing(LockModeContract):
    make = _mode
    excludes = True


class TestFencingInAGroup(LockModeContract):
    make = _mode
    replicas = 3
    excludes = True
