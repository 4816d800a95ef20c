"""`Cluster`: one cluster on this machine, with its description, its folder and its processes.

Methods that change a cluster take the lock of its folder and re-read the state under it. Reading
takes no lock. If the start fails, `up` restores the previous `cluster.toml`. If it is interrupted,
it removes a folder that it has created.
"""

import shutil
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from rmqkit.client_keys import ACCESS_FILE_VARIABLE
from rmqkit.cluster import processes, restart, security, users
from rmqkit.cluster.deferred_signals import signals_held
from rmqkit.cluster.errors import ClusterError, NoSuchCluster, UsageProblem
from rmqkit.cluster.health import isolated_nodes, readiness, takeover
from rmqkit.cluster.health.elections import ElectionsStatus, query_elections
from rmqkit.cluster.health.readiness import Target
from rmqkit.cluster.launch import Launch, alive_of, node_folder, processes_of, targets
from rmqkit.cluster.layout import description as descriptions
from rmqkit.cluster.layout import home as homes
from rmqkit.cluster.layout import nodefile, selectors, state
from rmqkit.cluster.layout.description import Description, NodePlan
from rmqkit.cluster.layout.names import DEFAULT, check_cluster_name
from rmqkit.cluster.layout.state import ProcessRecord
from rmqkit.suggestions import suggest
from rmqkit.tls.client_choice import TLS_VARIABLE

UP_TIMEOUT_S = 60.0
GRACE_S = 10.0
#: timeout of a question for the elected masters
ELECTIONS_S = 1.0


def quiet(text: str) -> None:
    """Discard a note."""


class Cluster:
    """The cluster `name` under `home` (by default `$RMQKIT_HOME`). It need not exist.

    `note` is called with each remark of a running command. `waiting` is called repeatedly while
    nodes start, with the nodes that are not ready and the reason. `lifeline` is a descriptor that
    nodes inherit (see `processes`), by default the one that this process was given.
    """

    def __init__(
        self,
        name: str = DEFAULT,
        *,
        home: Path | None = None,
        note: Callable[[str], None] = quiet,
        waiting: Callable[[str], None] = quiet,
        lifeline: int | None = None,
    ) -> None:
        self.name = check_cluster_name(name)
        self.home = home or homes.home_folder()
        self.folder = self.home / name
        self.note = note
        self.waiting = waiting
        self.lifeline = processes.lifeline_fd() if lifeline is None else lifeline

    # --- reading

    @property
    def exists(self) -> bool:
        return (self.folder / homes.DESCRIPTION).is_file()

    @property
    def description(self) -> Description:
        """The content of `cluster.toml`. Raises NoSuchCluster if it does not exist."""
        if not self.exists:
            others = homes.cluster_names(self.home)
            hint = suggest(self.name, others, "there are {known}") if others else ""
            start = f"start one with `rmqkit cluster up{self._name_word}`"
            raise NoSuchCluster(f"there is no cluster {self.name}{hint}{' Or ' if hint.endswith('?') else '; '}{start}")
        return descriptions.read(self.folder / homes.DESCRIPTION)

    @property
    def is_running(self) -> bool:
        """Whether any of its nodes runs."""
        return self.exists and bool(self.running())

    @property
    def namesrv(self) -> str:
        """The name servers' addresses, joined by `;`."""
        return ";".join(target.address for target in self.targets() if target.plan.is_nameserver)

    @property
    def controllers(self) -> list[str]:
        """The controllers' addresses; [] for a cluster without."""
        return [target.address for target in self.targets() if target.plan.is_controller]

    @property
    def client_tls(self) -> str:
        """The file with the TLS settings of its clients, "" if it has no TLS of its own."""
        return security.client_file(self.folder)

    def client_variables(self, user: str = users.OPERATOR) -> dict[str, str]:
        """Return the environment variables that clients of a secure cluster need; {} for others."""
        found = {TLS_VARIABLE: self.client_tls, ACCESS_FILE_VARIABLE: self.client_keys(user)}
        return {name: value for name, value in found.items() if value}

    def client_keys(self, user: str = users.OPERATOR) -> str:
        """Return the file with the keys of a user, "" without access control of its own."""
        return users.keys_file(self.folder, user)

    def node_folder(self, node: str) -> Path:
        return node_folder(self.folder, node)

    def select(self, selector: str) -> list[NodePlan]:
        """Return the nodes that a selector matches.

        Raises UsageProblem if there are none, ClusterError if the master is not known.
        """
        plans = self.description.nodes()
        parts = [part.strip() for part in selector.split(",")]
        if self.description.controllers and not {*parts}.isdisjoint(selectors.ROLES):
            selector = ",".join(word for part in parts for word in self._with_role(part))
        return selectors.select(plans, selector)

    def _with_role(self, part: str) -> list[str]:
        """Return the nodes that the controllers have made master, or the others; any other word as
        it is. Raises ClusterError if a role is asked for and no leading controller answers."""
        if part not in selectors.ROLES:
            return [part]
        targets = [target for target in self.targets() if target.plan.is_broker]
        groups = self.elections().groups
        masters = []
        for name in dict.fromkeys(target.plan.broker_name for target in targets):
            known = groups.get(name)
            if known is None:
                raise ClusterError(f"no leading controller says who is master of {name}; name the node")
            if known.master is None and part == selectors.MASTER:
                raise ClusterError(f"{name} has no master now; name the node")
            address = known.members.get(known.master) if known.master is not None else None
            masters += [target.plan.node for target in targets if target.address == address]
        others = [target.plan.node for target in targets if target.plan.node not in masters]
        return masters if part == selectors.MASTER else others

    def elections(self) -> ElectionsStatus:
        """Ask the running controllers who leads, and the leader for the groups."""
        targets = self.targets()
        running = self.running([target.plan for target in targets if target.plan.is_controller])
        asked = [
            target for target in targets if (process := running.get(target.plan.node)) and not processes.is_paused(process)
        ]
        names = list(dict.fromkeys(target.plan.broker_name for target in targets if target.plan.is_broker))
        return query_elections(asked, names, ELECTIONS_S)

    def running(self, plans: Iterable[NodePlan] | None = None) -> dict[str, psutil.Process]:
        """Return the process of each running node, by node. Paused processes are included."""
        known = processes.known(self.folder).nodes
        found = {}
        for plan in self.description.nodes() if plans is None else plans:
            started = known.get(plan.node)
            process = processes.find(started, self.node_folder(plan.node)) if started else None
            if process is not None:
                found[plan.node] = process
        return found

    def together(self, plans: list[NodePlan]) -> list[NodePlan]:
        """Return the nodes, plus all other nodes that share a process with them.

        A command affects a process as a whole, so `note` names the nodes that were added.
        """
        own = {plan.container for plan in plans if plan.container}
        nodes = self.description.nodes()
        whole = [plan for plan in nodes if plan in plans or plan.container in own]
        for process, members in processes_of(whole).items():
            others = [plan.node for plan in members if plan not in plans]
            if others:
                asked = ", ".join(plan.node for plan in members if plan in plans)
                self.note(f"{asked} shares process {process} with {', '.join(others)}, so the command affects all of them")
        return whole

    def targets(self) -> list[Target]:
        """Return the address of each node, without the nodes that never started."""
        description = self.description
        return targets(self.folder, description, description.nodes())

    # --- the whole

    def up(self, *, file: Path | None = None, timeout_s: float = UP_TIMEOUT_S, **given: Any) -> bool:
        """Start the nodes that do not run, and wait until they are ready.

        Return True if there were any. `file` is the description to begin with. `given` are fields
        of `Description` that replace those of the file; None leaves a field unchanged. Raises
        UsageProblem, or ClusterError if a node does not become ready.
        """
        is_new = not self.folder.exists()
        with homes.locked(self.folder, self.note):
            try:
                return self._up(file, given, timeout_s)
            except Exception:
                if is_new and not (self.folder / homes.NODES).exists():
                    self._remove_folder()
                raise
            except BaseException:  # Ctrl-C, SIGTERM
                if is_new:
                    with signals_held():
                        self._remove_folder()
                raise

    def _up(self, file: Path | None, given: dict[str, Any], timeout_s: float) -> bool:
        before = self.description if self.exists else None
        wanted = descriptions.read(file).changed(name=self.name) if file else before or Description(name=self.name)
        wanted = wanted.changed(**given)
        assumed = users.ASSUMED if wanted.secure else {}
        nodefile.check_settings({**assumed, **wanted.settings}, wanted.replicas, wanted.controllers)
        _ = wanted.bound, wanted.advertised  # fail on unknown hosts before anything changes
        if before is not None and before.controllers != wanted.controllers:
            raise ClusterError(
                f"cluster {self.name} has {before.controllers} controllers, and their number cannot change; start another"
                " cluster: `rmqkit cluster up NAME --preset controller`"
            )
        there = self.running(before.nodes()) if before else {}
        if before is not None and there and replace(wanted, any_port=before.any_port) != before:
            raise ClusterError(
                f"cluster {self.name} already runs with {_difference(before, wanted)};"
                f" stop it first with `rmqkit cluster down{self._name_word}`"
            )
        missing = [plan for plan in wanted.nodes() if plan.node not in there]
        if not missing:
            return False
        if before is not None:
            self._report_left_out(before, wanted)
        keep_ports = before is not None and before.base_port == wanted.base_port
        homes.write_whole(self.folder / homes.DESCRIPTION, wanted.toml())
        try:
            self._launch(wanted, missing, timeout_s, keep_ports=keep_ports)
        except BaseException:
            with signals_held():
                if before is None:
                    (self.folder / homes.DESCRIPTION).unlink(missing_ok=True)
                else:
                    homes.write_whole(self.folder / homes.DESCRIPTION, before.toml())
            raise
        return True

    def _report_left_out(self, before: Description, wanted: Description) -> None:
        kept = {plan.node for plan in wanted.nodes()}
        for plan in before.nodes():
            if plan.node not in kept:
                self.note(f"{plan.node} is no longer part of the cluster; its data stays in {self.node_folder(plan.node)}")

    def _launch(
        self, description: Description, plans: list[NodePlan], timeout_s: float, *, keep_ports: bool = True
    ) -> None:
        launch = Launch(
            folder=self.folder,
            description=description,
            plans=plans,
            lifeline=self.lifeline,
            keep_ports=keep_ports,
            note=self.note,
            waiting=self.waiting,
        )
        launch.run(timeout_s)

    def down(self, *, purge: bool = False, grace_s: float = GRACE_S) -> list[str]:
        """Stop all nodes. Return the names of those that ran.

        Their data stays, unless `purge` is set. If `cluster.toml` is invalid, stop all that were
        started. Raises NoSuchCluster.
        """
        if not (self.exists or (purge and (self.folder / homes.NODES).is_dir())):
            _ = self.description
        with homes.locked(self.folder, self.note):
            ended = self._end(self._plans_to_end(), grace_s) if self.exists else []
            if purge:
                self._remove_folder()
        return ended

    def _plans_to_end(self) -> list[NodePlan]:
        try:
            return self.description.nodes()
        except UsageProblem as error:
            self.note(f"{error}; the nodes that were started are stopped")
            return [descriptions.plan_by_name(node) for node in processes.known(self.folder).nodes]

    def _remove_folder(self) -> None:
        """Remove the files that this package has created, and the folder if nothing else is in it.

        The caller holds the lock, so the lock file is removed last.
        """
        with suppress(OSError):
            for folder in sorted((self.folder / homes.NODES).iterdir()):
                isolated_nodes.remove_left(folder)
        shutil.rmtree(self.folder / homes.NODES, ignore_errors=True)
        shutil.rmtree(self.folder / homes.TLS, ignore_errors=True)
        shutil.rmtree(self.folder / homes.ACCESS, ignore_errors=True)
        for name in (homes.DESCRIPTION, homes.STATE, homes.LOCK):
            (self.folder / name).unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()

    # --- single nodes

    def start(self, selector: str = "all", *, timeout_s: float = UP_TIMEOUT_S) -> list[str]:
        """Start the selected nodes that do not run. Return their names.

        Raises ClusterError if one does not become ready.
        """
        plans = self.together(self.select(selector))
        with homes.locked(self.folder, self.note):
            there = self.running()
            missing = [plan for plan in plans if plan.node not in there]
            if missing:
                self._launch(self.description, missing, timeout_s)
        return [plan.node for plan in missing]

    def stop(self, selector: str = "all", *, grace_s: float = GRACE_S) -> list[str]:
        """Stop the selected nodes cleanly (SIGTERM). Return the names of those that ran."""
        plans = self.together(self.select(selector))
        with homes.locked(self.folder, self.note):
            return self._end(plans, grace_s)

    def restart(
        self,
        selector: str = "all",
        *,
        grace_s: float = GRACE_S,
        timeout_s: float = UP_TIMEOUT_S,
        rolling: bool = False,
    ) -> list[str]:
        """Stop the nodes that run, start all of them, and return their names.

        Nothing is stopped if a node would not start again. With `rolling` the processes are
        restarted one after the other, each after the slaves of all groups are in sync. `timeout_s`
        applies to each step. Raises ClusterError; nodes that were not restarted yet still run then.
        """
        plans = self.together(self.select(selector))
        with homes.locked(self.folder, self.note):
            restart.check_start(self.folder, self.description, plans, self.running(plans))
            for batch in restart.batches(plans) if rolling else [plans]:
                if rolling:
                    self._wait_ready(time.monotonic() + timeout_s, in_sync=True)
                    self.note(f"restarting {', '.join(plan.node for plan in batch)}{self._unserved(batch)}")
                self._end(batch, grace_s)
                self._launch(self.description, batch, timeout_s)
            if rolling:
                self._wait_ready(time.monotonic() + timeout_s, in_sync=True)
        return [plan.node for plan in plans]

    def _unserved(self, batch: list[NodePlan]) -> str:
        """Return a remark on the groups that have no broker while these nodes are down, or ""."""
        others = {plan.broker_name for plan in self.description.nodes() if plan not in batch}
        groups = [name for name in dict.fromkeys(plan.broker_name for plan in batch) if name and name not in others]
        return f"; no broker serves {', '.join(groups)} meanwhile" if groups else ""

    def kill(self, selector: str = "all") -> list[str]:
        """Send SIGKILL to all selected nodes at once. Return the names of those that ran."""
        plans = self.together(self.select(selector))
        with homes.locked(self.folder, self.note):
            running = self.running(plans)
            self._record_request(plans, "killed")
            processes.kill(_processes(plans, running))
        return list(running)

    def pause(self, selector: str = "all") -> list[str]:
        """Suspend the selected nodes (SIGSTOP). Return the names of those that ran.

        Their processes and sockets stay, but do nothing.
        """
        return self._signal(selector, signal.SIGSTOP, paused=True)

    def resume(self, selector: str = "all") -> list[str]:
        """Continue paused nodes (SIGCONT) and heal those that a drill has isolated.

        Return the names of the nodes that were paused or isolated.
        """
        plans = self.select(selector)
        resumed = self._signal(selector, signal.SIGCONT, paused=False)
        healed = [node for node in self.running(plans) if isolated_nodes.heal(self.node_folder(node))]
        return [plan.node for plan in plans if plan.node in resumed or plan.node in healed]

    def wait(self, until: str = "ready", timeout_s: float = UP_TIMEOUT_S) -> None:
        """Wait until a condition holds.

        "ready": every node is ready. "in-sync": in addition, every master counts all of its slaves
        in sync. "acting" and "master-back": see `takeover`. Raises ClusterError if a node does not
        run, or on timeout; the text then says which condition is not met.
        """
        deadline_s = time.monotonic() + timeout_s
        if until == "acting":
            takeover.wait_acting(self._poll, deadline_s, self.waiting)
        elif until == "master-back":
            takeover.wait_master_back(self._poll, deadline_s, self.waiting)
        else:
            self._wait_ready(deadline_s, in_sync=until == "in-sync")

    def _poll(self) -> tuple[list[Target], dict[str, readiness.NodeStatus]]:
        """Return the nodes that have an address, and the status of those that answer.

        Only nodes that run and are neither paused nor isolated are asked.
        """
        targets = self.targets()
        running = self.running([target.plan for target in targets])
        asked = [
            target
            for target in targets
            if (process := running.get(target.plan.node)) is not None
            and not processes.is_paused(process)
            and not isolated_nodes.is_cut_off(self.node_folder(target.plan.node))
        ]
        return targets, readiness.query_all(asked, takeover.LOOK_S)

    def _wait_ready(self, deadline_s: float, *, in_sync: bool) -> None:
        try:
            self._wait_answering(deadline_s, in_sync=in_sync)
        except ClusterError:
            paused = [node for node, process in self.running().items() if processes.is_paused(process)]
            if not paused:
                raise
            verb = "is" if len(paused) == 1 else "are"
            raise ClusterError(
                f"{', '.join(paused)} {verb} paused; resume with `rmqkit cluster resume{self._name_word}`"
            ) from None

    def _wait_answering(self, deadline_s: float, *, in_sync: bool) -> None:
        known = processes.known(self.folder)
        plans, targets = self.description.nodes(), self.targets()
        try:
            for plan in plans:
                if plan.node not in {target.plan.node for target in targets}:
                    raise readiness.NodeDied(plan.node, 0)
            alive = alive_of(self.folder, known)
            stuck = readiness.wait_ready(targets, targets, alive, alive, deadline_s, {}, self.waiting)
        except readiness.NodeDied as died:
            raise ClusterError(
                f"{died.node} does not run; start it with `rmqkit cluster start{self._name_word} {died.node}`"
            ) from None
        for node, why in stuck.items():
            raise ClusterError(f"{node} does not follow its master: {why}; `rmqkit explain {node}`")
        if in_sync:
            masters = [
                target
                for target in targets
                if target.plan.is_broker and not target.plan.is_slave and not target.plan.is_elected
            ]
            groups = [
                (master, [plan for plan in plans if plan.is_slave and plan.master == master.plan.node])
                for master in masters
            ]
            readiness.wait_in_sync(groups, deadline_s, self.waiting)

    def _signal(self, selector: str, number: signal.Signals, *, paused: bool) -> list[str]:
        plans = self.together(self.select(selector))
        with homes.locked(self.folder, self.note):
            running = self.running(plans)
            chosen = [(node, each) for node, each in running.items() if processes.is_paused(each) is not paused]
            for _name, process in _processes(plans, dict(chosen)):
                processes.send_signal(process, number)
            processes.wait_paused([process for _node, process in chosen], paused)
        return [node for node, _process in chosen]

    def _end(self, plans: list[NodePlan], grace_s: float) -> list[str]:
        """Stop nodes cleanly, brokers first, so that they can unregister from the name servers.

        Then controllers: while brokers stop, they need them for nothing.
        """
        running = self.running(plans)
        self._record_request(plans, "stopped")
        for kind in ("broker", "controller", "nameserver"):
            batch = [plan for plan in plans if plan.kind == kind]
            processes.end(_processes(batch, running), grace_s, self.note)
        return list(running)

    def _record_request(self, plans: Iterable[NodePlan], asked: str) -> None:
        known = processes.known(self.folder)
        for plan in plans:
            if plan.node in known.nodes:
                started = known.nodes[plan.node]
                known.nodes[plan.node] = ProcessRecord(started.pid, started.start_s, asked)
        try:
            state.save(self.folder, known)
        except ClusterError as error:  # stopping must work on a full disk; the nodes then count as died
            self.note(f"warning: {error}")

    @property
    def _name_word(self) -> str:
        return "" if self.name == DEFAULT else f" {self.name}"


def _processes(plans: Iterable[NodePlan], running: dict[str, psutil.Process]) -> list[tuple[str, psutil.Process]]:
    """Return the process of each running node as (process name, process), each process once."""
    return list({plan.process: running[plan.node] for plan in plans if plan.node in running}.items())


def _difference(before: Description, wanted: Description) -> str:
    """Return the values of `before` that `wanted` changes, as text."""
    names = (
        "groups",
        "replicas",
        "nameservers",
        "controllers",
        "bind",
        "advertise",
        "base_port",
        "log_format",
        "layout",
        "secure",
    )
    words = [f"{name} = {getattr(before, name)!r}" for name in names if getattr(before, name) != getattr(wanted, name)]
    for key in sorted({*before.settings, *wanted.settings}):
        if before.settings.get(key) != wanted.settings.get(key):
            words.append(f"{key} = {before.settings.get(key, 'its default')}")
    return ", ".join(words)


def clusters() -> list[Cluster]:
    """Return all clusters of the home folder, sorted by name."""
    home = homes.home_folder()
    found = []
    for name in homes.cluster_names(home):
        with suppress(UsageProblem):
            found.append(Cluster(name, home=home))
    return found


def meant_cluster(*, changes: bool = False) -> str:
    """Return the name of the cluster that a command without a name refers to.

    It is `default` if that runs, else the only running cluster, else the only existing one. With
    `changes`, for a command that changes what runs, it is `default` if that exists: run twice, the
    command must not affect another cluster. If there are several candidates, it is `default`.
    """
    default = Cluster()
    if default.is_running or (changes and default.exists):
        return DEFAULT
    for found in (running_clusters(), homes.cluster_names(default.home)):
        if found:
            return found[0] if len(found) == 1 else DEFAULT
    return DEFAULT


def running_clusters() -> list[str]:
    """Return the names of the clusters with a running node.

    A cluster with an invalid description is left out.
    """
    found = []
    for cluster in clusters():
        with suppress(ClusterError):
            found += [cluster.name] if cluster.is_running else []
    return found
