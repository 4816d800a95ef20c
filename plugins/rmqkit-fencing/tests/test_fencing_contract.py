"""The public contract suite of lock modes, on a single broker and in a group."""

import pytest

from rmqkit.testing import LockModeContract
from rmqkit_fencing.plugin import _mode


class TestFencing(LockModeContract):
    make = _mode
    excludes = True


@pytest.mark.long
class TestFencingInAGroup(LockModeContract):
    make = _mode
    replicas = 3
    excludes = True
