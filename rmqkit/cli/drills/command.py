"""`rmqkit fail-master` and `rmqkit drill ...`: break a cluster on purpose and check each promise.

Exit codes: 0 every promise was kept, 1 a promise is broken, 2 usage, 3 no cluster, 4 inconclusive
(the drill could not run, or proved nothing).
"""

from __future__ import annotations

import contextlib
import logging
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqkit.cli import output
from rmqkit.cli.cluster_lookup import Json, use_settings_of
from rmqkit.cli.commands import group
from rmqkit.cli.complete import cluster_names, preset_names, setting_keys
from rmqkit.cli.drills import drill_output
from rmqkit.cli.errors import Unreachable, UsageError
from rmqkit.cli.nodes.clusters import cluster_name, refuse_on_windows

if TYPE_CHECKING:
    from rmqkit.drill.plan import Plan
    from rmqkit.drill.real.runner import DrillResult

#: at least as many replicas has a drill with controllers
REPLICAS_ELECTED = 3

fail_master_app = typer.Typer(add_completion=False, rich_markup_mode=None)
app = group("drill")

FaultName = Annotated[
    str, typer.Option("--fault", help="How the node is broken: kill, pause, isolate …; `rmqkit drill list` has all faults.")
]
Seed = Annotated[
    int, typer.Option("--seed", help="The random seed. It decides what each writer sends when, and to which queue.")
]
Seconds = Annotated[
    float | None,
    typer.Option(
        "--seconds", min=0.5, help="How long the fault lasts. By default 6, or long enough for a slave to act as master."
    ),
]
Report = Annotated[Path | None, typer.Option("--report", help="Write the HTML report to this file as well.")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Set a setting of the nodes; may be repeated.", autocompletion=setting_keys
    ),
]
ModeName = Annotated[
    str,
    typer.Option(
        "--mode",
        help="async, sync or quorum, each also with +sync-flush or +pool: quorum+sync-flush. With three controllers: "
        "all-ack or some-ack, also with +sync-flush.",
    ),
]
Target = Annotated[str, typer.Option("--target", help="The node to break: master, slave, broker-a:1.")]
LoadNames = Annotated[
    str | None,
    typer.Option(
        "--load",
        metavar="NAMES",
        help="Loads in addition to plain and delayed messages: some of timers, transactions, pop, separated by commas, "
        "or none. By default all, with --break none; on a running cluster without transactions if its brokers check them "
        "too rarely for a drill of a minute.",
    ),
]
Replicas = Annotated[int, typer.Option("--replicas", min=1, help="Brokers in each group.")]
PresetName = Annotated[
    str | None,
    typer.Option(
        "--preset",
        help="A named set of settings: fast-failover, secure, controller (then the mode is all-ack).",
        autocompletion=preset_names,
    ),
]


@fail_master_app.command()
def fail_master(
    broker_group: Annotated[
        str | None,
        typer.Argument(metavar="[GROUP]", help="The broker group whose master to break; by default the first."),
    ] = None,
    cluster_option: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="NAME",
            help="The cluster; by default the one that runs here, or `default` if several run.",
            autocompletion=cluster_names,
        ),
    ] = None,
    fault: FaultName = "kill",
    seed: Seed = 1,
    seconds: Seconds = None,
    load: LoadNames = None,
    report: Report = None,
    json: Json = False,
) -> None:
    """Break the master of a broker group of a running cluster, and prove message by message what
    survived.

    The command sends and consumes messages in topics of its own. Meanwhile it kills the master (or
    pauses or isolates it) and brings it back. Then it reads every replica and checks what the
    cluster promises in its mode. At the end the cluster is as before.
    """
    refuse_on_windows()
    from rmqkit.cluster import Cluster
    from rmqkit.drill.plan import Plan
    from rmqkit.drill.real import runner
    from rmqkit.drill.real.services import table

    drill_output.check_report(report)
    cluster = cluster_name(None, cluster_option, changes=True)
    found = Cluster(cluster)
    if not found.is_running:
        name = "" if cluster == "default" else f" {cluster}"
        raise Unreachable(f"no cluster {cluster} is running here; start one with `rmqkit cluster up{name}`")
    use_settings_of(found)
    groups = list(dict.fromkeys(plan.broker_name for plan in found.description.nodes() if plan.is_broker))
    if broker_group is not None and broker_group not in groups:
        raise UsageError(f"cluster {cluster} has no group {broker_group}; there are {', '.join(groups)}")
    _check_fault(fault)
    services = None if load is None else table.parse_load(load)
    plan = Plan(fault=fault, seed=seed, group=broker_group or groups[0], fault_ms=_ms(seconds))
    plan = runner.plan_for(found.description, plan)
    if services is None:
        services = runner.load_that_fits(found, plan)
    plan = plan.changed(services=services)
    output.note(f"drill: {fault} the master of {plan.group} in cluster {cluster}; seed {seed}{_load_note(plan)}")
    with _clients_quiet():
        done = runner.on_cluster(found, plan, found.folder, output.note)
    where = "" if cluster == "default" else f" --cluster {cluster}"
    command = f"rmqkit fail-master {plan.group}{where} --fault {fault} --seed {seed}{_lasting(plan)}{_loaded(plan)}"
    _end([done], [command], report, json)


@app.command(name="list")
def list_drills(json: Json = False) -> None:
    """List faults, loads, modes, promises, defects and the runs so far."""
    from rmqkit import plugins
    from rmqkit.cluster.layout.home import home_folder
    from rmqkit.drill import runs

    loaded = plugins.load()
    faults = {name: make().text for name, make in loaded.faults.items()}
    promises = {name: make().text for name, make in loaded.promises.items()}
    found = runs.all_runs(home_folder())
    if json:
        output.document(
            {
                "faults": faults,
                "loads": dict(drill_output.loads()),
                "promises": promises,
                "modes": [mode for mode, _ in drill_output.modes()],
                "defects": drill_output.defects(),
                "runs": [{"run": run.name, "folder": str(run)} for run in found],
            }
        )
        return
    tables: list[tuple[Sequence[str], Sequence[Sequence[str]]]] = [
        (("fault (--fault)", "what it does"), list(faults.items())),
        (("load (--load)", "what the drill's clients do"), drill_output.loads()),
        (("mode (--mode)", "where a message is when its send is answered SEND_OK"), drill_output.modes()),
        (("promise", "what it says"), list(promises.items())),
        (
            ("defect (--break)", "what it does", "found by"),
            [(name, text, drill_output.finding_command(name)) for name, text in drill_output.defects().items()],
        ),
        (("run", "verdict"), [(run.name, drill_output.judgement_of(run)) for run in found]),
    ]
    for columns, rows in tables:
        if rows:
            output.table(columns, rows)
            print()


@app.command()
def run(
    fault: FaultName = "kill",
    target: Target = "master",
    mode: ModeName = "quorum",
    settings: Settings = None,
    breaks: Annotated[
        list[str] | None,
        typer.Option("--break", metavar="DEFECT", help="Plant this defect in the brokers; the drill must find it."),
    ] = None,
    seed: Seed = 1,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Number of drills; the seeds count up from --seed.")] = 1,
    groups: Annotated[int, typer.Option("--groups", min=1, help="Number of broker groups.")] = 1,
    replicas: Replicas = 2,
    preset: PresetName = None,
    seconds: Seconds = None,
    send_timeout: Annotated[float, typer.Option("--send-timeout", min=0.1, help="Timeout of a send in seconds.")] = 3.0,
    load: LoadNames = None,
    report: Report = None,
    json: Json = False,
) -> None:
    """Start a cluster for a drill, break it, check the promises, and remove it."""
    refuse_on_windows()
    from rmqkit.drill.plan import SERVICES
    from rmqkit.drill.real.services.table import parse_load

    drill_output.check_report(report)
    _check_fault(fault)
    # A planted defect is known to be found by plain and delayed messages.
    services = (() if breaks else SERVICES) if load is None else parse_load(load)
    known = drill_output.defects()
    for defect in breaks or ():
        if defect not in known:
            raise UsageError(f"there is no defect {defect}; there are {', '.join(known) or 'none'}")
    plan = _plan(mode, settings, preset, fault=fault, target=target, groups=groups, replicas=replicas)
    plan = plan.changed(seed=seed, breaks=tuple(breaks or ()), fault_ms=_ms(seconds))
    plan = plan.changed(send_timeout_ms=round(send_timeout * 1000), services=services)
    for defect in plan.breaks:
        if missed := drill_output.may_miss(defect, plan):
            output.note(missed)
    plans = [plan.changed(seed=seed + number) for number in range(repeat)]
    done = [_with_own_cluster(each) for each in plans]
    _end(done, [run_command(each) for each in plans], report, json)


def run_command(plan: Plan) -> str:
    """Return the `rmqkit drill run` command for a plan."""
    words = [f"--fault {plan.fault} --target {plan.target} --mode {plan.mode} --replicas {plan.replicas}"]
    words += [f"--groups {plan.groups}{_lasting(plan)} --send-timeout {plan.send_timeout_ms / 1000:g}{_loaded(plan)}"]
    words += ["--preset secure"] if plan.secure else []
    words += [f"--set {shlex.quote(f'{key}={value}')}" for key, value in plan.settings.items()]
    words += [f"--break {each}" for each in plan.breaks]
    return f"rmqkit drill run {' '.join(words)} --seed {plan.seed}"


@app.command()
def show(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The name of a run, its folder, or last.")] = "last",
    report: Report = None,
    json: Json = False,
) -> None:
    """Show the verdict of a run."""
    from rmqkit.cluster.layout.home import home_folder
    from rmqkit.drill import runs

    folder = runs.find(home_folder(), run)
    plan, verdict = runs.load_plan(folder), runs.load_verdict(folder)
    if report is not None:
        drill_output.check_report(report)
        drill_output.write_report(folder, report)
    if json:
        output.document(drill_output.document(plan, verdict, folder))
    else:
        drill_output.show(plan, verdict, folder, report)
    raise typer.Exit(verdict.exit_code)


@app.command()
def replay(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The name of a run, its folder, or last.")] = "last",
    report: Report = None,
    json: Json = False,
) -> None:
    """Run the recorded plan of a run again, with the same seed, on a new cluster."""
    refuse_on_windows()
    from rmqkit.cluster.layout.home import home_folder
    from rmqkit.drill import runs

    drill_output.check_report(report)
    folder = runs.find(home_folder(), run)
    done = _with_own_cluster(runs.load_plan(folder))
    _end([done], [f"rmqkit drill replay {folder.name}"], report, json)


@app.command()
def simulate(
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Number of drills; each has its own seed.")] = 100,
    first: Annotated[int, typer.Option("--from", min=0, help="The first seed.")] = 1,
    family: Annotated[
        str,
        typer.Option(
            "--family",
            help="The kind of drills: replicas, acting, acting-3x3, elections, timers, transactions, pop.",
            show_default="replicas",
        ),
    ] = "",
    mode: Annotated[str, typer.Option("--mode", help="The mode of all drills; by default random.")] = "",
    defect: Annotated[
        str,
        typer.Option("--break", metavar="DEFECT", help="Plant this defect; stop at the first seed that finds it."),
    ] = "",
    secure: Annotated[
        bool, typer.Option("--secure", help="Access control and TLS are on: requests are signed, connections encrypted.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print a line for each seed.")] = False,
    json: Json = False,
) -> None:
    """Run hundreds of drills on simulated clusters in virtual time; each seed has random mode,
    faults and times.

    The same seed gives the same drill. A broken promise is printed with its seed, its plan and the
    course of the drill. With --break, the promise that the defect violates must report it: exit
    code 0 if it does for any seed, else 1.
    """
    from rmqkit.drill import simulation
    from rmqkit.drill.plan import Mode

    if mode:
        Mode.parse(mode)
    if family and family not in simulation.FAMILIES:
        raise UsageError(f"there is no family {family}; there are {', '.join(simulation.FAMILIES)}")
    if secure:
        from rmqkit.cluster import certificates

        certificates.check_library()
    numbers = range(first, first + seeds)
    if defect:
        from rmqkit.drill.defects.table import DEFECTS

        known = drill_output.defects()
        if defect not in known:
            raise UsageError(f"there is no defect {defect}; there are {', '.join(known)}")
        if (family or DEFECTS[defect].family) not in simulation.FAMILIES:
            raise UsageError(f"no simulated drill finds {defect}: use `{drill_output.finding_command(defect)}`")
        count, found = simulation.find(defect, numbers, mode, family, secure=secure)
        if json:
            output.document({"defect": defect, "seeds": count, "found": found._asdict() if found else None})
        elif found is not None:
            simulation.tell(found, typer.echo, defect=defect, mode=mode, secure=secure)
            typer.echo(f"{defect} was found after {count} seeds")
        else:
            typer.echo(f"{defect} was not found in {count} seeds")
        raise typer.Exit(0 if found is not None else 1)
    ends = []
    for done in simulation.many(numbers, mode, family=family or simulation.REPLICAS, secure=secure):
        ends.append(done)
        if not json:
            simulation.tell(done, typer.echo, verbose=verbose, mode=mode, secure=secure)
    if json:
        bad = [done._asdict() for done in ends if done.judgement != "valid"]
        output.document({"seeds": len(ends), "summary": simulation.summary(ends), "not_valid": bad})
    else:
        typer.echo(simulation.summary(ends))
    raise typer.Exit(simulation.exit_code(ends))


@app.command()
def compare(
    settings: Annotated[
        list[str],
        typer.Option("--set", metavar="KEY=VALUE[,KEY=VALUE]", help="Settings of one side; give the option twice.", min=1),
    ],
    fault: FaultName = "kill",
    target: Target = "master",
    mode: ModeName = "quorum",
    seed: Seed = 1,
    groups: Annotated[int, typer.Option("--groups", min=1, help="Number of broker groups.")] = 1,
    replicas: Replicas = 2,
    preset: PresetName = None,
    seconds: Seconds = None,
    load: LoadNames = None,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Drills of each side; the seeds count up from --seed.")] = 1,
    json: Json = False,
) -> None:
    """Run the same drill with two sets of settings and print the figures side by side.

    Give --set twice, once for each side; `--set ''` is a side without settings of its own. Totals
    depend on how long a drill lasts, so each has its rate below it. The folders of the runs are
    printed at the end: `rmqkit drill show FOLDER` has the details of one.

    With --runs N, N pairs of drills run. Both drills of a pair have the same seed, and the sides
    alternate in which one runs first. Each figure is then the median of its side, with a 95 %
    confidence interval, and the difference is the median over the pairs.
    """
    refuse_on_windows()
    from rmqkit.drill.plan import SERVICES
    from rmqkit.drill.real.services.table import parse_load

    _check_fault(fault)
    services = SERVICES if load is None else parse_load(load)
    if len(settings) != 2:
        raise UsageError("compare needs two sides: give --set twice (settings of one side are separated by commas)")
    plans = []
    for side in settings:
        pairs = [pair for pair in side.split(",") if pair.strip()]
        plan = _plan(mode, pairs, preset, fault=fault, target=target, groups=groups, replicas=replicas)
        plans.append(plan.changed(seed=seed, fault_ms=_ms(seconds), services=services))
    done: list[list[DrillResult]] = [[], []]
    for number in range(runs):
        for at in (0, 1) if number % 2 == 0 else (1, 0):
            output.note(f"side: {settings[at] or 'no settings'}")
            done[at].append(_with_own_cluster(plans[at].changed(seed=seed + number)))
    names = drill_output.side_names(settings, "-" if json else "no settings")
    if json:
        output.document(drill_output.compared_document(names, done))
    else:
        output.table(("", *names, *(["difference"] if runs > 1 else [])), drill_output.compared(done))
        print()
        output.table(("run of", "seed", "verdict", "folder"), drill_output.compared_runs(names, done))
        if runs > 1:
            output.note(drill_output.INTERVALS)
    raise typer.Exit(_worst([each for side in done for each in side]))


# --- inside


def _ms(seconds: float | None) -> int:
    """Return milliseconds; 0 if the option is not given, and the drill chooses."""
    return 0 if seconds is None else round(seconds * 1000)


def _lasting(plan: Plan) -> str:
    """Return the option for the length of the fault, as it was given."""
    return f" --seconds {plan.fault_ms / 1000:g}" if plan.fault_ms else ""


def _loaded(plan: Plan) -> str:
    """Return the option for the load."""
    return f" --load {','.join(plan.services) or 'none'}"


def _load_note(plan: Plan) -> str:
    return f"; load: {', '.join(plan.services)}" if plan.services else ""


def _plan(mode: str, pairs: list[str] | None, preset: str | None, **given: Any) -> Plan:
    from rmqkit.cluster.layout.description import Description, parse_settings
    from rmqkit.cluster.layout.presets import with_preset
    from rmqkit.cluster.layout.selectors import select
    from rmqkit.drill.plan import CONTROLLERS, ELECTED, Mode, Plan, ReplicationMode
    from rmqkit.settings.table import show

    asked = with_preset(preset, {"settings": parse_settings(pairs or ())})
    is_elected = "controllers" in asked
    if is_elected and Mode.parse(mode).replication not in ELECTED:
        mode = ReplicationMode.ALL_ACK
    if set(asked) - {"settings", "secure", "controllers", "replicas"} or ("replicas" in asked and not is_elected):
        raise UsageError(
            f"--preset {preset}: drills choose groups and replicas with --groups and --replicas, one broker a process"
        )
    chosen = asked["settings"]
    settings = {key: show(value) for key, value in chosen.items()}
    chosen_mode = Mode.parse(mode)
    controllers = CONTROLLERS if chosen_mode.replication in ELECTED else 0
    if controllers:
        # Two replicas are the default of drills without controllers.
        given["replicas"] = max(given["replicas"], REPLICAS_ELECTED)
    secure = asked.get("secure", False)
    plan = Plan(mode=chosen_mode, settings=settings, secure=secure, controllers=controllers, **given).checked()
    nodes = Description(groups=plan.groups, replicas=plan.replicas, controllers=controllers).nodes()
    if not any(node.is_broker for node in select(nodes, plan.target)):
        brokers = ", ".join(node.node for node in nodes if node.is_broker)
        raise UsageError(f"--target {plan.target}: drills break brokers; there are {brokers}")
    return plan


def _check_fault(fault: str) -> None:
    from rmqkit import plugins

    known = plugins.load().faults
    if fault not in known:
        raise UsageError(f"there is no fault {fault}; there are {', '.join(known)}")


def _with_own_cluster(plan: Plan) -> DrillResult:
    from rmqkit.cluster.layout.home import home_folder
    from rmqkit.drill.real import runner

    of_group = f" of {plan.group}" if plan.group else ""
    output.note(f"drill: {plan.fault} the {plan.target}{of_group}; mode {plan.mode}, seed {plan.seed}{_load_note(plan)}")
    with _clients_quiet():
        return runner.with_own_cluster(plan, home_folder(), output.note)


@contextlib.contextmanager
def _clients_quiet() -> Iterator[None]:
    """Silence the drill's own clients: their errors are expected and recorded in the history."""
    logger = logging.getLogger("rmqkit")
    before = logger.propagate
    handler = logging.NullHandler()
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.propagate = before
        logger.removeHandler(handler)


def _worst(done: list[DrillResult]) -> int:
    """Return the exit code of the worst drill: broken, then inconclusive, then kept."""
    codes = {each.outcome.verdict.exit_code for each in done}
    return 1 if 1 in codes else max(codes)


def _end(done: list[DrillResult], commands: list[str], report: Path | None, json: bool) -> None:
    """Write and show the drills; `commands` has the command that repeats each drill."""
    for each, command in zip(done, commands, strict=True):
        drill_output.write_report(each.run, None, command)
    if report is not None:
        drill_output.write_report(done[-1].run, report, commands[-1])
    if json:
        documents = [drill_output.document_of(each) for each in done]
        output.document(documents[0] if len(documents) == 1 else documents)
    else:
        for each in done:
            drill_output.show(each.plan, each.outcome.verdict, each.run, report if each is done[-1] else None)
    raise typer.Exit(_worst(done))
