"""`rmqkit cluster ...`: starts, stops, breaks and shows whole clusters on this machine.

A single word of `[NAME] [SELECTOR]` is a selector if it looks like one (`master`, `broker-a:0`,
`ns`), else a name. Clusters cannot have names that look like selectors.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqkit.cli import output
from rmqkit.cli.cluster_lookup import Json
from rmqkit.cli.commands import group
from rmqkit.cli.complete import cluster_names, clusters_and_selectors, preset_names, setting_keys
from rmqkit.cli.errors import Failed, UsageError
from rmqkit.suggestions import suggest

if TYPE_CHECKING:
    from rmqkit.cluster import Cluster
    from rmqkit.cluster.layout.description import Description

DEFAULT = "default"

app = group("cluster")

Name = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME",
        help="The cluster; by default the one that runs here, or `default` if several run.",
        autocompletion=cluster_names,
    ),
]
UpName = Annotated[
    str | None, typer.Argument(metavar="NAME", help="The cluster; by default `default`, or the name in --file.")
]
ClusterOption = Annotated[
    str | None,
    typer.Option("--cluster", metavar="NAME", help="The same as NAME.", autocompletion=cluster_names),
]
Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME] [SELECTOR]",
        help="Which nodes: all, master, ns, broker-a, broker-a:0, broker-a-0, ns-0; several joined by commas.",
        autocompletion=clusters_and_selectors,
    ),
]
#: the states of `wait --for` -> the text once the cluster has reached it
WAITED_FOR = {
    "ready": "is ready",
    "in-sync": "is in sync",
    "acting": "has acting masters",
    "master-back": "has its masters back",
}
Preset = Annotated[
    str | None,
    typer.Option(
        "--preset",
        help="Named sets of options, separated by commas: fast-failover, controller, secure, crosswise.",
        autocompletion=preset_names,
    ),
]
AllInOne = Annotated[bool, typer.Option("--container", help="Run all brokers in one process (--layout all).")]
Layout = Annotated[
    str | None,
    typer.Option(
        "--layout",
        metavar="LAYOUT",
        help="Which brokers share a process: apart, all, replica (same id), crosswise (default: apart).",
    ),
]
Grace = Annotated[float, typer.Option("--grace", min=0.0, help="Seconds until a node that does not stop is killed.")]
Timeout = Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds to wait until the nodes answer.")]


def refuse_on_windows() -> None:
    if sys.platform == "win32":
        raise Failed("clusters run on Linux and macOS; on Windows rmqkit is a client only")


@contextlib.contextmanager
def patient(name: str) -> "Iterator[Cluster]":
    """Open a cluster that shows on the terminal what it waits for."""
    from rmqkit.cluster import Cluster

    line = output.WaitNote()

    def note(text: str) -> None:
        line.clear()
        output.note(text)

    try:
        yield Cluster(name, note=note, waiting=line.tell)
    finally:
        line.clear()


def cluster_name(name: str | None, option: str | None, *, default: bool = False, changes: bool = False) -> str:
    """Return the cluster that NAME or --cluster names, else the one that is meant, or `default`.

    Raises UsageError if NAME and --cluster differ.
    """
    from rmqkit.cluster import meant_cluster

    if name is not None and option is not None and name != option:
        raise UsageError(f"{name} and --cluster {option} name different clusters; give one of them")
    return name or option or (DEFAULT if default else meant_cluster(changes=changes))


def name_and_selector(words: list[str] | None, option: str | None = None, *, changes: bool = False) -> tuple[str, str]:
    """Return the cluster and the nodes that [NAME] [SELECTOR] and --cluster mean.

    Raises UsageError.
    """
    from rmqkit.cluster.layout.names import looks_like_selector

    words = words or []
    if len(words) > 2:
        raise UsageError(f"too many words: {' '.join(words)}; give [NAME] [SELECTOR]")
    if len(words) == 2:
        return cluster_name(words[0], option), words[1]
    if option is not None and words and words[0] != option:
        return option, words[0]
    if not words or all(looks_like_selector(part.strip()) for part in words[0].split(",")):
        return cluster_name(None, option, changes=changes), words[0] if words else "all"
    known = clusters_and_selectors("")
    if words[0] not in known and (hint := suggest(words[0], known)):
        raise UsageError(f"{words[0]} is neither a cluster nor a node{hint}")
    return cluster_name(words[0], option), "all"


Insecure = Annotated[
    bool, typer.Option("--insecure", help="Listen beyond this machine although there is no access control.")
]


@app.command()
def up(
    name: UpName = None,
    cluster_option: ClusterOption = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="A description in the format of cluster.toml.")] = None,
    groups: Annotated[
        str | None,
        typer.Option("--groups", metavar="N|auto", help="Number of broker groups (1); auto: one per CPU core."),
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option("--replicas", help="Number of brokers per group, master included (2)."),
    ] = None,
    nameservers: Annotated[int | None, typer.Option("--nameservers", help="Number of name servers (1).")] = None,
    preset: Preset = None,
    container: AllInOne = False,
    layout: Layout = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Set a setting of the nodes; may be repeated.", autocompletion=setting_keys
        ),
    ] = None,
    base_port: Annotated[
        int | None,
        typer.Option("--base-port", help="First port: name servers first, then brokers, 10 apart."),
    ] = None,
    any_port: Annotated[bool, typer.Option("--any-port", help="Use the next port if one is in use.")] = False,
    bind: Annotated[str | None, typer.Option("--bind", help="Address to listen on (127.0.0.1).")] = None,
    advertise: Annotated[str | None, typer.Option("--advertise", help="Address that clients connect to.")] = None,
    insecure: Insecure = False,
    log_format: Annotated[
        str | None, typer.Option("--log-format", metavar="text|json", help="Format of log lines (text).")
    ] = None,
    timeout: Timeout = 60.0,
    json: Json = False,
) -> None:
    """Start a cluster and wait until it answers. If it exists, start the nodes that are down."""
    refuse_on_windows()
    from rmqkit.cluster.health.status import document
    from rmqkit.cluster.layout.description import parse_settings, read
    from rmqkit.cluster.layout.presets import with_preset

    of_file = read(file).name if file and not (name or cluster_option) else None
    with patient(cluster_name(name or of_file, cluster_option, default=True)) as cluster:
        given = {
            "groups": None,
            "replicas": replicas,
            "nameservers": nameservers,
            "settings": parse_settings(settings) if settings else None,
            "base_port": base_port,
            "any_port": any_port or None,
            "bind": bind,
            "advertise": advertise,
            "log_format": log_format,
            "layout": layout_of(container, layout),
        }
        given["groups"] = groups_of(groups, cluster, file, with_preset(preset, given))
        wanted = with_preset(preset, given)
        check_doors(cluster, file, wanted, is_accepted=insecure)
        started = cluster.up(file=file, timeout_s=timeout, **wanted)
    warn_of_open_doors(cluster.description)
    status = document(cluster)
    for node in status["nodes"]:
        if node["state"] != "up":
            output.note(f"{node['node']} is {node['state']}")
    if json:
        output.document(status)
    else:
        print_banner(status, started, cluster)


def groups_of(text: str | None, cluster: "Cluster", file: Path | None, given: Mapping[str, Any]) -> int | None:
    """Return the number of groups that --groups means, None if it is not given.

    With `auto` an existing cluster keeps its groups, because their queues hold its messages. More
    groups than one use no more cores if one process has all masters. `given` has the other options.
    Raises UsageError.
    """
    if text is None:
        return None
    if text != "auto":
        if not text.removeprefix("-").isdecimal():
            raise UsageError(f"--groups {text}: give a number or auto")
        return int(text)
    from rmqkit.cluster.layout.description import Description, read
    from rmqkit.cluster.layout.machine import this_machine

    if cluster.exists:
        chosen = cluster.description.groups
        output.note(f"{output.count_text(chosen, 'group')}: those that the cluster {cluster.name} has already")
        return chosen
    known = read(file) if file else Description()
    if (given.get("layout") or known.layout) in ("all", "replica"):
        chosen, why = 1, "one process has the masters of all groups, and a process uses one CPU core"
    else:
        chosen, why = this_machine().groups_for(given.get("replicas") or known.replicas)
    output.note(f"{output.count_text(chosen, 'group')}: {why}")
    return chosen


def layout_of(container: bool, layout: str | None) -> str | None:
    if container and layout not in (None, "all"):
        raise UsageError(f"--container means --layout all, which contradicts --layout {layout}; give one of them")
    return "all" if container else layout


def check_doors(cluster: "Cluster", file: Path | None, given: Mapping[str, Any], *, is_accepted: bool) -> None:
    """Raises UsageError if the cluster is to listen beyond this machine without access control,
    unless that is accepted.

    A cluster that has been started like this before is not asked about again.
    """
    from rmqkit.cluster.layout.description import Description, read

    before = cluster.description if cluster.exists else None
    known = read(file) if file else before or Description()
    wanted = known.changed(**{key: given.get(key) for key in ("bind", "secure", "settings")})
    if not is_accepted and is_open(wanted) and not (before and is_open(before) and before.bind == wanted.bind):
        raise UsageError(
            f"--bind {wanted.bind} opens the cluster to others, and without access control all of them may do everything:"
            " use --preset secure, or --insecure if the network is trusted"
        )


def is_open(description: "Description") -> bool:
    """Whether nodes listen beyond this machine without access control."""
    import ipaddress

    try:
        is_local = ipaddress.ip_address(description.bind).is_loopback
    except ValueError:
        is_local = description.bind == "localhost"
    switches = (description.settings.get(key) for key in ("authenticationEnabled", "authorizationEnabled"))
    return not is_local and not description.secure and not all(str(each).lower() == "true" for each in switches)


def warn_of_open_doors(description: "Description") -> None:
    if is_open(description):
        output.note(
            f"warning: nodes listen on {description.bind} without access control:"
            " everyone who can reach them can read and write"
        )


def print_banner(status: dict[str, Any], started: bool, cluster: "Cluster") -> None:
    from rmqkit.cluster import meant_cluster
    from rmqkit.cluster.users import APP, OPERATOR

    name = status["name"]
    client_tls, operator, app_keys = cluster.client_tls, cluster.client_keys(), cluster.client_keys(APP)
    print(f"cluster {name} is up" if started else f"cluster {name} is up already")
    print()
    output.report(status["nodes"], {"node": "node", "address": "address", "pid": "pid"})
    print(f"\nname servers  {status['namesrv']}\ndata          {status['home']}")
    if client_tls:
        print(f"TLS           {client_tls}")
    if operator:
        print(f"users         {OPERATOR:10}{operator}\n{'':14}{APP:10}{app_keys}")
    for at, url in enumerate(node["metrics"] for node in status["nodes"] if node["metrics"]):
        print(f"{'' if at else 'metrics':14}{url}")
    print("\nnext:")
    is_meant = meant_cluster() == name
    word = "" if is_meant else f" {name}"
    namesrv = "" if is_meant else f' --namesrv "{status["namesrv"]}"'
    print(f'  rmqkit send hello "first message"{namesrv}')
    print(f"  rmqkit consume hello{namesrv}")
    print(f"  rmqkit cluster status{word}")
    if client_tls:
        print(f"  java -Dtls.enable=true -Dtls.config.file={client_tls} ...")
    if operator:
        print(f"    with new AclClientRPCHook(new SessionCredentials(accessKey, secretKey)) of {app_keys}")
        print(f"  cp {operator} $ROCKETMQ_HOME/conf/tools.yml    # for mqadmin")


@app.command()
def status(
    name: Name = None,
    cluster_option: ClusterOption = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Update the output every second until Ctrl-C.")] = False,
    json: Json = False,
) -> None:
    """Show the role, address and state of each node."""
    from rmqkit.cli.nodes.watch import print_status, watch_status
    from rmqkit.cluster import Cluster
    from rmqkit.cluster.health.status import document

    cluster = Cluster(cluster_name(name, cluster_option))
    if watch:
        watch_status(cluster, json)
    elif json:
        output.document(document(cluster))
    else:
        print_status(document(cluster))


@app.command()
def down(
    name: Name = None,
    cluster_option: ClusterOption = None,
    purge: Annotated[bool, typer.Option("--purge", help="Also delete the data.")] = False,
    grace: Grace = 10.0,
    json: Json = False,
) -> None:
    """Stop a cluster. Its data stays, unless --purge is given."""
    from rmqkit.cluster import Cluster

    # Without a name, a purge deletes only the cluster `default`, never another one that runs.
    name = cluster_name(name, cluster_option, default=purge, changes=True)
    cluster = Cluster(name, note=output.note)
    ended = cluster.down(purge=purge, grace_s=grace)
    if json:
        output.document({"name": name, "stopped": ended, "purged": purge})
        return
    said = f"cluster {name} is down" if ended else f"cluster {name} was down"
    print(f"{said}; its data is gone" if purge else f"{said}; its data stays in {cluster.folder}")
    if purge and cluster.folder.is_dir():
        print(f"other files stay in {cluster.folder}: {', '.join(sorted(os.listdir(cluster.folder)))}")


@app.command(name="list")
def list_clusters(json: Json = False) -> None:
    """List all clusters of this user."""
    from rmqkit.cluster import ClusterError, clusters

    found = []
    for cluster in clusters():
        try:
            nodes = cluster.description.nodes()
        except ClusterError as error:
            output.note(f"cluster {cluster.name} is skipped: {error}")
            continue
        running = cluster.running(nodes)
        found.append(
            {
                "name": cluster.name,
                "state": "up" if len(running) == len(nodes) else "part" if running else "down",
                "running": len(running),
                "nodes": len(nodes),
                "namesrv": cluster.namesrv,
                "home": str(cluster.folder),
            }
        )
    columns: output.Columns = {
        "cluster": "name",
        "state": "state",
        "nodes": lambda row: f"{row['running']}/{row['nodes']}",
        "name servers": "namesrv",
        "data": "home",
    }
    output.report(found, columns, as_json=json, none="no clusters; start one with `rmqkit cluster up`")


@app.command()
def env(
    name: Name = None,
    cluster_option: ClusterOption = None,
    operator: Annotated[
        bool, typer.Option("--operator", help="On a secure cluster, let programs act as its operator, not as user app.")
    ] = False,
    json: Json = False,
) -> None:
    """Print shell lines that point clients at a cluster: eval "$(rmqkit cluster env)"."""
    from rmqkit.cluster import Cluster
    from rmqkit.cluster.errors import NoSuchCluster

    name = cluster_name(name, cluster_option)
    cluster = Cluster(name)
    description = cluster.description
    if not cluster.is_running:
        word = "" if name == "default" else f" {name}"
        raise NoSuchCluster(f"cluster {name} is down; start it with `rmqkit cluster up{word}`")
    from rmqkit.cluster.users import APP, OPERATOR

    variables = {"NAMESRV_ADDR": cluster.namesrv, **cluster.client_variables(OPERATOR if operator else APP)}
    lines = "\n".join(f"export {key}='{value}'" for key, value in variables.items())
    output.answer(variables, lines, as_json=json)
    warn_of_open_doors(description)


@app.command()
def logs(
    words: Words = None,
    cluster_option: ClusterOption = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue with new lines until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-l", min=0, help="Number of lines to print from the end.")] = 50,
    json: Json = False,
) -> None:
    """Print the last log lines of nodes."""
    from rmqkit.cli.nodes.watch import print_logs
    from rmqkit.cluster import Cluster

    name, selector = name_and_selector(words, cluster_option)
    cluster = Cluster(name)
    plans = cluster.select(selector)
    # A process of several brokers has its own log, with its start and its end.
    names = dict.fromkeys(name for plan in plans for name in (plan.process, plan.node))
    nodes = [(name, cluster.node_folder(name)) for name in names]
    print_logs(nodes, lines, follow=follow, json=json)


@app.command()
def wait(
    name: Name = None,
    cluster_option: ClusterOption = None,
    until: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="STATE",
            help="ready: every node answers and slaves follow; in-sync: also, masters count all slaves as in sync; acting: "
            "slaves act for masters that do not answer; master-back: all masters serve again.",
        ),
    ] = "ready",
    timeout: Timeout = 60.0,
    json: Json = False,
) -> None:
    """Wait until a cluster is in a given state."""
    from rmqkit.cluster.health.status import document

    if until not in WAITED_FOR:
        raise UsageError(f"--for {until}{suggest(until, WAITED_FOR, 'must be {known}')}")
    name = cluster_name(name, cluster_option)
    with patient(name) as cluster:
        cluster.wait(until, timeout)
    if json:
        output.document(document(cluster))
    else:
        print(f"cluster {name} {WAITED_FOR[until]}")


def act(words: list[str] | None, cluster_option: str | None, verb: str, json: bool, how: Callable[..., list[str]]) -> None:
    """Run an action on nodes and print the nodes it changed. No error if no node had to change."""
    from rmqkit.cluster import running_clusters

    refuse_on_windows()
    name, selector = name_and_selector(words, cluster_option, changes=True)
    with patient(name) as cluster:
        done = how(cluster, selector)
    value = {"name": name, "action": verb, "nodes": done}
    output.answer(value, f"{verb}: {', '.join(done) or 'nothing to do'}", as_json=json)
    others = [each for each in running_clusters() if each != name] if not done else []
    if others:
        output.note(f"the command was for cluster {name}; these run: {', '.join(others)}")


@app.command()
def kill(words: Words = None, cluster_option: ClusterOption = None, json: Json = False) -> None:
    """Kill nodes at once (SIGKILL), like a crash."""
    act(words, cluster_option, "killed", json, lambda cluster, selector: cluster.kill(selector))


@app.command()
def stop(words: Words = None, cluster_option: ClusterOption = None, grace: Grace = 10.0, json: Json = False) -> None:
    """Stop nodes cleanly (SIGTERM)."""
    act(words, cluster_option, "stopped", json, lambda cluster, selector: cluster.stop(selector, grace_s=grace))


@app.command()
def start(words: Words = None, cluster_option: ClusterOption = None, timeout: Timeout = 60.0, json: Json = False) -> None:
    """Start nodes that are down, and wait until the cluster answers."""
    act(words, cluster_option, "started", json, lambda cluster, selector: cluster.start(selector, timeout_s=timeout))


@app.command()
def restart(
    words: Words = None,
    cluster_option: ClusterOption = None,
    rolling: Annotated[
        bool,
        typer.Option("--rolling", help="Restart one process at a time, slaves first; groups with slaves stay readable."),
    ] = False,
    grace: Grace = 10.0,
    timeout: Timeout = 60.0,
    json: Json = False,
) -> None:
    """Stop nodes cleanly and start them again. Stops nothing if a node would not start again."""

    def how(cluster: "Cluster", selector: str) -> list[str]:
        return cluster.restart(selector, grace_s=grace, timeout_s=timeout, rolling=rolling)

    act(words, cluster_option, "restarted", json, how)


@app.command()
def pause(words: Words = None, cluster_option: ClusterOption = None, json: Json = False) -> None:
    """Freeze nodes (SIGSTOP): their sockets stay open and nothing answers."""
    act(words, cluster_option, "paused", json, lambda cluster, selector: cluster.pause(selector))


@app.command()
def resume(words: Words = None, cluster_option: ClusterOption = None, json: Json = False) -> None:
    """Resume paused nodes (SIGCONT), and reconnect nodes that a drill has isolated."""
    act(words, cluster_option, "resumed", json, lambda cluster, selector: cluster.resume(selector))
