"""For people who test with rmqkit: contract suites for plug-ins, a broker in virtual time, factories of pytest fixtures.

The fixtures themselves (`rmqkit_cluster`, `rmqkit_clean`, `rmqkit_running`) are pytest's to find: installing rmqkit is
enough. What stands here is loaded when it is first asked for. See `docs/testing.md` and `docs/plugins.md`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rmqkit.testing.allocators import AllocatorContract
    from rmqkit.testing.brokers import SimBroker
    from rmqkit.testing.clusters import Clean, RunningCluster
    from rmqkit.testing.escape import EscapeContract
    from rmqkit.testing.fault_policies import FaultPolicyContract
    from rmqkit.testing.faults import FaultContract, FaultLab
    from rmqkit.testing.filters import FilterContract
    from rmqkit.testing.lock_modes import LockModeContract
    from rmqkit.testing.promises import PromiseContract
    from rmqkit.testing.special_duties import SpecialDutyContract
    from rmqkit.testing.storage import StorageEngineContract
    from rmqkit.testing.store_world import StoreWorld

_HOMES = {
    "AllocatorContract": "rmqkit.testing.allocators",
    "Clean": "rmqkit.testing.clusters",
    "EscapeContract": "rmqkit.testing.escape",
    "FaultContract": "rmqkit.testing.faults",
    "FaultLab": "rmqkit.testing.faults",
    "FaultPolicyContract": "rmqkit.testing.fault_policies",
    "FilterContract": "rmqkit.testing.filters",
    "LockModeContract": "rmqkit.testing.lock_modes",
    "PromiseContract": "rmqkit.testing.promises",
    "RunningCluster": "rmqkit.testing.clusters",
    "SimBroker": "rmqkit.testing.brokers",
    "SpecialDutyContract": "rmqkit.testing.special_duties",
    "StorageEngineContract": "rmqkit.testing.storage",
    "StoreWorld": "rmqkit.testing.store_world",
}

__all__ = [
    "AllocatorContract",
    "Clean",
    "EscapeContract",
    "FaultContract",
    "FaultLab",
    "FaultPolicyContract",
    "FilterContract",
    "LockModeContract",
    "PromiseContract",
    "RunningCluster",
    "SimBroker",
    "SpecialDutyContract",
    "StorageEngineContract",
    "StoreWorld",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'rmqkit.testing' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
