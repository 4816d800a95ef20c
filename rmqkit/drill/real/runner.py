"""Runs the drill of a plan on real processes: on a running cluster or on a new one.

A new cluster is created in a temporary home on free ports. It holds a lifeline: its nodes end when
this process ends, in whatever way.
"""

import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rmqkit import plugins
from rmqkit.client_keys import ACCESS_FILE_VARIABLE
from rmqkit.cluster import Cluster
from rmqkit.cluster.errors import ClusterError
from rmqkit.cluster.layout.description import Description
from rmqkit.cluster.processes import last_lines
from rmqkit.drill import runs
from rmqkit.drill.contract import Fault
from rmqkit.drill.engine import Engine, Outcome
from rmqkit.drill.history import History
from rmqkit.drill.plan import CONTROLLERS, Plan, PlanError
from rmqkit.drill.real.driver import RealDriver, plan_as_recorded, remove_left, settings_seen
from rmqkit.drill.real.services.table import SETTINGS, default_load
from rmqkit.settings.build import writable
from rmqkit.settings.table import show
from rmqkit.tls.client_choice import TLS_VARIABLE

Tell = Callable[[str], None]

#: settings that a plan does not record: two have secrets, the others depend on these
OF_ACCESS = (
    "authenticationEnabled",
    "authorizationEnabled",
    "initAuthenticationUser",
    "innerClientAuthenticationCredentials",
)

#: new clusters look for free ports from a random multiple of the stride on; this range is below the
#: ports that systems use for outgoing connections
FIRST_PORT, PORT_STRIDE, STRIDES = 12_000, 200, 100


class DrillResult(NamedTuple):
    """A finished drill, and the folder of its run."""

    plan: Plan
    outcome: Outcome
    history: History
    run: Path


def on_cluster(cluster: Cluster, plan: Plan, parent: Path, tell: Tell) -> DrillResult:
    """Drill a running cluster and restore it.

    Raises DrillError if the cluster does not answer, and PlanError if the plan cannot run.
    """
    fault = fault_of(plan)
    promises = [make() for make in plugins.load().promises.values()]
    with runs.alone(cluster.folder):
        plan = plan_as_recorded(plan, settings_seen(cluster, plan.group))
        remove_left(cluster, [topic_of(run) for run in runs.runs_of(cluster.folder)])
        run = runs.new_run(parent, plan)
        driver = RealDriver(cluster, plan, topic_of(run))
        outcome = Engine(driver, fault, promises, tell).run()
    nodes = [each.node for each in cluster.description.nodes()]
    logs = {node: last_lines(cluster.node_folder(node), runs.LOG_LINES) for node in nodes}
    runs.save(run, plan, driver.history, outcome, logs)
    return DrillResult(plan, outcome, driver.history, run)


def fault_of(plan: Plan) -> Fault:
    """Return the fault of a plan.

    Raises PlanError if the fault or a promise is unknown, or the fault needs controllers and the
    cluster has none: it would break a node, and prove nothing.
    """
    loaded = plugins.load()
    if plan.fault not in loaded.faults:
        raise PlanError(f"there is no fault {plan.fault!r}; there are {', '.join(loaded.faults)}")
    for name in plan.promises:
        if name not in loaded.promises:
            raise PlanError(f"there is no promise {name!r}; there are {', '.join(loaded.promises)}")
    fault: Fault = loaded.faults[plan.fault]()
    if getattr(fault, "needs_controllers", False) and not shape_of(plan)["controllers"]:
        raise PlanError(
            f"the fault {plan.fault} needs a cluster with controllers:"
            f" `rmqkit cluster up --preset controller`, or `rmqkit drill run --fault {plan.fault} --mode all-ack`"
        )
    return fault


def check_home(parent: Path) -> None:
    """Check that runs can be written under `parent`. Raises ClusterError."""
    drills = parent / runs.DRILLS
    try:
        drills.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ClusterError(f"cannot use {drills}: {error.strerror}; set RMQKIT_HOME to a writable folder") from None
    if not os.access(drills, os.W_OK):
        raise ClusterError(f"cannot write into {drills}; set RMQKIT_HOME to a writable folder")


def topic_of(run: Path) -> str:
    """Return the topic of a run. The names of its groups begin with it."""
    return f"drill-{run.name}"


@contextmanager
def own_cluster(plan: Plan, tell: Tell) -> Iterator[Cluster]:
    """Start a new cluster for the plan, and remove it afterwards. Raises ClusterError."""
    home = Path(tempfile.mkdtemp(prefix="rmqkit-drill-"))
    reading, writing = os.pipe()
    try:
        cluster = Cluster("drill", home=home, lifeline=reading)
        try:
            cluster.up(
                any_port=True,
                base_port=FIRST_PORT + PORT_STRIDE * secrets.randbelow(STRIDES),
                **shape_of(plan),
            )
            tell(f"started a cluster for this drill: {plan.groups} × {plan.replicas} brokers, mode {plan.mode}")
            with _environment_of(cluster):
                yield cluster
        finally:
            if cluster.exists:
                cluster.down(purge=True)
    finally:
        os.close(reading)
        os.close(writing)
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def _environment_of(cluster: Cluster) -> Iterator[None]:
    """Let the drill's clients, also those in other processes, connect as the cluster demands."""
    names = (TLS_VARIABLE, ACCESS_FILE_VARIABLE)
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(cluster.client_variables())
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def plan_for(description: Description, plan: Plan) -> Plan:
    """Return the plan of a drill on a running cluster.

    It has what a replay needs to start the same cluster.
    """
    return plan.changed(
        groups=description.groups,
        replicas=description.replicas,
        nameservers=description.nameservers,
        controllers=description.controllers,
        layout=description.layout,
        secure=description.secure,
        settings={key: show(value) for key, value in description.settings.items() if key not in OF_ACCESS},
    )


def load_that_fits(cluster: Cluster, plan: Plan) -> tuple[str, ...]:
    """Return the services that a drill on this cluster has unless the user names some.

    Raises DrillError if the master of the plan's group does not answer.
    """
    return default_load(plan.changed(seen=settings_seen(cluster, plan.group)))


def shape_of(plan: Plan) -> dict[str, Any]:
    """Return the fields of a `Description` for a new cluster for this plan."""
    return {
        "groups": plan.groups,
        "replicas": plan.replicas,
        "nameservers": plan.nameservers,
        "controllers": plan.controllers or (CONTROLLERS if plan.elected else 0),
        "layout": plan.layout,
        "secure": plan.secure,
        "settings": settings_of(plan),
    }


def settings_of(plan: Plan) -> dict[str, str]:
    """Return the settings of a new cluster: its mode's, its services', its own, its defects.

    A recorded plan also has what its master reported (`Plan.seen`). Those settings were in effect
    during the recorded drill, so they override the others.
    """
    settings = {**plan.mode.settings(plan.replicas), "drillFaultsEnable": "true"}
    for service in plan.services:
        settings |= SETTINGS[service]
    settings |= {**plan.settings, **plan.seen}
    if plan.seen:
        settings = writable(settings)
    settings.pop("enableControllerMode", None)  # the number of controllers says it
    if plan.breaks:
        settings["drillDefects"] = ",".join(plan.breaks)
    return settings


def with_own_cluster(plan: Plan, parent: Path, tell: Tell) -> DrillResult:
    """Start a cluster, drill it, and remove it. Raises ClusterError, DrillError, PlanError.

    What cannot run is refused before the start.
    """
    fault_of(plan)
    check_home(parent)
    with own_cluster(plan, tell) as cluster:
        return on_cluster(cluster, plan, parent, tell)
