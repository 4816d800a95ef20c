"""A drill knows its cluster only through its driver: simulated clusters use the same engine."""

import subprocess
import sys

from rmqkit.drill import plugin
from rmqkit.drill.faults import FAULTS
from rmqkit.drill.promises import PROMISES
from tests.tidy.tree import GROUP, modules, none

#: parts of rmqkit that only drivers of real processes, their callers and the report may import
REAL = ("rmqkit.api", "rmqkit.cluster", "rmqkit.shell", "rmqkit.sim", "rmqkit.plugins")
DRIVERS = ("real", "sim")
PURE = [
    module
    for module in modules()
    if module.package == "drill" and not module.name.removeprefix("rmqkit.drill.").startswith(DRIVERS)
]


@GROUP
def test_plans_faults_and_promises_know_no_cluster():
    drivers = tuple(f"rmqkit.drill.{driver}" for driver in DRIVERS)
    none(
        f"{module.path}:{line} imports {name}"
        for module in PURE
        if not module.name.endswith(".defects")
        for name, line in module.imports
        if name.startswith((*REAL, *drivers))
    )


def test_there_is_something_to_hold():
    assert {"rmqkit.drill.engine", "rmqkit.drill.history", "rmqkit.drill.promises.survival"} <= {each.name for each in PURE}


def test_the_module_that_nodes_load_names_every_fault_and_promise():
    """Every node loads `rmqkit.drill.plugin`, so it contains only names."""
    assert list(plugin.rmqkit_faults()) == list(FAULTS)
    assert list(plugin.rmqkit_promises()) == list(PROMISES)
    for name, make in (plugin.rmqkit_faults() | plugin.rmqkit_promises()).items():
        assert make().name == name


def test_a_node_loads_nothing_of_drills_but_names():
    code = "import sys; from rmqkit import plugins; plugins.load(); print(*(m for m in sys.modules if 'rmqkit.drill' in m))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["rmqkit.drill", "rmqkit.drill.plugin"]
