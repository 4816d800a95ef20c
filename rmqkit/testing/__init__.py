"""Tools for tests: contract suites for plug-ins, a simulated broker, factories of pytest fixtures.

- Contract suites (`StorageEngineContract`, `LockModeContract`, …): subclass one and set `make` to
  the factory that the plug-in registers. pytest then runs the tests of the suite.
- `SimBroker` and `StoreWorld`: a whole broker, or only a storage engine, in virtual time.
- `rmqkit.testing.factories`: factories of fixtures with other options than the ready-made ones.

Installing rmqkit registers the fixtures `rmqkit_cluster`, `rmqkit_clean` and `rmqkit_running` with
pytest. They hand out `RunningCluster` and `Clean`. Each name of this package is imported when it is
first used. See `docs/testing.md` and `docs/plugins.md`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rmqkit.testing.allocators import AllocatorContract as AllocatorContract
    from rmqkit.testing.brokers import SimBroker as SimBroker
    from rmqkit.testing.clusters import Clean as Clean
    from rmqkit.testing.clusters import RunningCluster as RunningCluster
    from rmqkit.testing.controller_logs import ControllerLogContract as ControllerLogContract
    from rmqkit.testing.escape import EscapeContract as EscapeContract
    from rmqkit.testing.fault_policies import FaultPolicyContract as FaultPolicyContract
    from rmqkit.testing.faults import FaultContract as FaultContract
    from rmqkit.testing.faults import FaultLab as FaultLab
    from rmqkit.testing.filters import FilterContract as FilterContract
    from rmqkit.testing.lock_modes import LockModeContract as LockModeContract
    from rmqkit.testing.promises import PromiseContract as PromiseContract
    from rmqkit.testing.special_duties import SpecialDutyContract as SpecialDutyContract
    from rmqkit.testing.storage import StorageEngineContract as StorageEngineContract
    from rmqkit.testing.store_world import StoreWorld as StoreWorld

#: public name -> module that defines it
_HOMES = {
    "AllocatorContract": "rmqkit.testing.allocators",
    "Clean": "rmqkit.testing.clusters",
    "ControllerLogContract": "rmqkit.testing.controller_logs",
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

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'rmqkit.testing' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
