"""One cluster on this machine, as an object: what was asked for, its folder, and the processes that run it.

Commands that change it take the folder's lock and re-read the state under it; reading takes no lock. `up` puts
`cluster.toml` back when the start fails, and removes a folder it has made when it is interrupted.
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

from rmqkit.cluster import processes, restart
from rmqkit.cluster.deferred_signals import signals_held
from rmqkit.cluster.errors import ClusterError, NoSuchCluster, UsageProblem
from rmqkit.cluster.health import isolated_nodes, readiness, takeover
from rmqkit.cluster.health.readiness import Target
from rmqkit.cluster.launch import Launch, alive_of, node_folder, processes_of, targets
from rmqkit.cluster.layout import description as descriptions
from rmqkit.cluster.layout import home as homes
from rmqkit.cluster.layout import nodefile, selectors, state
from rmqkit.cluster.layout.description import Description, NodePlan
from rmqkit.cluster.layout.names import DEFAULT, check_cluster_name
from rmqkit.cluster.layout.state import ProcessRecord
from rmqkit.suggestions import suggest

UP_TIMEOUT_S = 60.0
GRACE_S = 10.0


def quiet(text: str) -> None:
    """A note nobody reads."""


class Cluster:
    """The cluster `name` under `home` (`$RMQKIT_HOME` unless given), whether it exists or not.

    `note` is given a line whenever there is something to say while a command runs, `waiting` one again and again while
    nodes start: for whom, and why. `lifeline` is a descriptor to hand down to nodes (see `processes`), by default the one
    this process was given.
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
        """Raises NoSuchCluster."""
        if not self.exists:
            others = homes.cluster_names(self.home)
            hint = suggest(self.name, others, "there are {known}") if others else ""
            start = f"start one with `rmqkit cluster up{self._name_word}`"
            raise NoSuchCluster(f"there is no cluster {self.name}{hint}{' Or ' if hint.endswith('?') else '; '}{start}")
        return descriptions.read(self.folder / homes.DESCRIPTION)

    @property
    def is_running(self) -> bool:
        """Whether any node of it runs."""
        return self.exists and bool(self.running())

    @property
    def namesrv(self) -> str:
        """The name servers' addresses, joined by `;`."""
        return ";".join(target.address for target in self.targets() if not target.plan.is_broker)

    def node_folder(self, node: str) -> Path:
        return node_folder(self.folder, node)

    def select(self, selector: str) -> list[NodePlan]:
        """The nodes a selector means. Raises UsageProblem."""
        return selectors.select(self.description.nodes(), selector)

    def running(self, plans: Iterable[NodePlan] | None = None) -> dict[str, psutil.Process]:
        """The processes of the nodes that run, paused ones included."""
        known = processes.known(self.folder).nodes
        found = {}
        for plan in self.description.nodes() if plans is None else plans:
            started = known.get(plan.node)
            process = processes.find(started, self.node_folder(plan.node)) if started else None
            if process is not None:
                found[plan.node] = process
        return found

    def together(self, plans: list[NodePlan]) -> list[NodePlan]:
        """The nodes with all that live in a process of theirs; says who comes along. A process is one for all of them."""
        own = {plan.container for plan in plans if plan.container}
        nodes = self.description.nodes()
        whole = [plan for plan in nodes if plan in plans or plan.container in own]
        for process, members in processes_of(whole).items():
            others = [plan.node for plan in members if plan not in plans]
            if others:
                asked = ", ".join(plan.node for plan in members if plan in plans)
                self.note(f"{asked} lives in {process}, which is one process with {', '.join(others)}: it is all of them")
        return whole

    def targets(self) -> list[Target]:
        """Where the nodes answer; those that never started are left out."""
        description = self.description
        return targets(self.folder, description, description.nodes())

    # --- the whole

    def up(self, *, file: Path | None = None, timeout_s: float = UP_TIMEOUT_S, **given: Any) -> bool:
        """Start what does not run; True when there was something to start. Returns when the protocol answers.

        `file` is a description to begin with, `given` are fields of `Description` that were asked for (None: not asked).
        Raises UsageProblem, or ClusterError when a node does not come up.
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
        nodefile.check_settings(wanted.settings, wanted.replicas)
        _ = wanted.bound, wanted.advertised  # names that cannot be found are said before anything happens
        there = self.running(before.nodes()) if before else {}
        if before is not None and there and replace(wanted, any_port=before.any_port) != before:
            raise ClusterError(
                f"cluster {self.name} runs already, with {_difference(before, wanted)};"
                f" `rmqkit cluster down{self._name_word}` first"
            )
        missing = [plan for plan in wanted.nodes() if plan.node not in there]
        if not missing:
            return False
        if before is not None:
            self._say_left_out(before, wanted)
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

    def _say_left_out(self, before: Description, wanted: Description) -> None:
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
        """Stop all nodes; the names of those that ran. The data stays unless `purge`. Raises NoSuchCluster."""
        if not (self.exists or (purge and (self.folder / homes.NODES).is_dir())):
            _ = self.description
        with homes.locked(self.folder, self.note):
            ended = self._end(self.description.nodes(), grace_s) if self.exists else []
            if purge:
                self._remove_folder()
        return ended

    def _remove_folder(self) -> None:
        """What this package made, and the folder itself when nothing else is in it. The lock is held, and goes last."""
        with suppress(OSError):
            for folder in sorted((self.folder / homes.NODES).iterdir()):
                isolated_nodes.remove_left(folder)
        shutil.rmtree(self.folder / homes.NODES, ignore_errors=True)
        for name in (homes.DESCRIPTION, homes.STATE, homes.LOCK):
            (self.folder / name).unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()

    # --- single nodes

    def start(self, selector: str = "all", *, timeout_s: float = UP_TIMEOUT_S) -> list[str]:
        """Start those of the nodes that do not run; their names. Raises ClusterError when one does not come up."""
        plans = self.together(self.select(selector))
        with homes.locked(self.folder, self.note):
            there = self.running()
            missing = [plan for plan in plans if plan.node not in there]
            if missing:
                self._launch(self.description, missing, timeout_s)
        return [plan.node for plan in missing]

    def stop(self, selector: str = "all", *, grace_s: float = GRACE_S) -> list[str]:
        """Stop cleanly (SIGTERM); the names of those that ran."""
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

        Nothing is stopped if a node would not start again. With `rolling` the processes are restarted
        one after the other, each once the slaves of all groups are in sync; `timeout_s` is for each
        step. Raises ClusterError; the nodes that were not reached still run then.
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
        """Which groups have no broker while these nodes are down."""
        others = {plan.broker_name for plan in self.description.nodes() if plan not in batch}
        groups = [name for name in dict.fromkeys(plan.broker_name for plan in batch) if name and name not in others]
        return f"; nobody serves {', '.join(groups)} meanwhile" if groups else ""

    def kill(self, selector: str = "all") -> list[str]:
        """SIGKILL, all at once; the names of those that ran."""
        plans = self.together(self.select(selector))
        with homes.locked(self.folder, self.note):
            running = self.running(plans)
            self._asked(plans, "killed")
            processes.kill(_processes(plans, running))
        return list(running)

    def pause(self, selector: str = "all") -> list[str]:
        """SIGSTOP: the processes stay, with their sockets, and do nothing; the names of those that ran."""
        return self._signal(selector, signal.SIGSTOP, paused=True)

    def resume(self, selector: str = "all") -> list[str]:
        """SIGCONT, and an end of what a drill has cut off; the names of those that were paused or cut off."""
        plans = self.select(selector)
        resumed = self._signal(selector, signal.SIGCONT, paused=False)
        healed = [node for node in self.running(plans) if isolated_nodes.heal(self.node_folder(node))]
        return [plan.node for plan in plans if plan.node in resumed or plan.node in healed]

    def wait(self, until: str = "ready", timeout_s: float = UP_TIMEOUT_S) -> None:
        """Until every node answers ("ready"), or until every master counts all of its slaves in sync as well ("in-sync").

        "acting" and "master-back" are told in `takeover`. Raises ClusterError naming a node that does not run, or what is
        lacking when time is over.
        """
        deadline_s = time.monotonic() + timeout_s
        if until == "acting":
            takeover.wait_acting(self._look, deadline_s, self.waiting)
        elif until == "master-back":
            takeover.wait_master_back(self._look, deadline_s, self.waiting)
        else:
            self._wait_ready(deadline_s, in_sync=until == "in-sync")

    def _look(self) -> tuple[list[Target], dict[str, readiness.NodeStatus]]:
        """The nodes that have an address, and what those say that answer: that run, and are neither paused nor cut off."""
        targets = self.targets()
        running = self.running([target.plan for target in targets])
        asked = [
            target
            for target in targets
            if (process := running.get(target.plan.node)) is not None
            and not processes.is_paused(process)
            and not isolated_nodes.is_cut_off(self.node_folder(target.plan.node))
        ]
        return targets, readiness.look(asked, takeover.LOOK_S)

    def _wait_ready(self, deadline_s: float, *, in_sync: bool) -> None:
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
            masters = [target for target in targets if target.plan.is_broker and not target.plan.is_slave]
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
        """Stop nodes cleanly, brokers first: they say goodbye to their name servers."""
        running = self.running(plans)
        self._asked(plans, "stopped")
        for is_broker in (True, False):
            batch = [plan for plan in plans if plan.is_broker is is_broker]
            processes.end(_processes(batch, running), grace_s, self.note)
        return list(running)

    def _asked(self, plans: Iterable[NodePlan], asked: str) -> None:
        known = processes.known(self.folder)
        for plan in plans:
            if plan.node in known.nodes:
                started = known.nodes[plan.node]
                known.nodes[plan.node] = ProcessRecord(started.pid, started.start_s, asked)
        try:
            state.save(self.folder, known)
        except ClusterError as error:  # stopping must work on a full disk; the nodes will merely count as died
            self.note(f"warning: {error}")

    @property
    def _name_word(self) -> str:
        return "" if self.name == DEFAULT else f" {self.name}"


def _processes(plans: Iterable[NodePlan], running: dict[str, psutil.Process]) -> list[tuple[str, psutil.Process]]:
    """The processes of those nodes that run, by name, each once."""
    return list({plan.process: running[plan.node] for plan in plans if plan.node in running}.items())


def _difference(before: Description, wanted: Description) -> str:
    """What the running one has, where the two differ."""
    names = ("groups", "replicas", "nameservers", "bind", "advertise", "base_port", "log_format", "layout")
    words = [f"{name} = {getattr(before, name)!r}" for name in names if getattr(before, name) != getattr(wanted, name)]
    for key in sorted({*before.settings, *wanted.settings}):
        if before.settings.get(key) != wanted.settings.get(key):
            words.append(f"{key} = {before.settings.get(key, 'its default')}")
    return ", ".join(words)


def clusters(home: Path | None = None) -> list[Cluster]:
    """All clusters of this user, by name."""
    home = home or homes.home_folder()
    found = []
    for name in homes.cluster_names(home):
        with suppress(UsageProblem):
            found.append(Cluster(name, home=home))
    return found


def meant_cluster(*, changes: bool = False) -> str:
    """The name of the cluster that a command without a name means.

    It is `default` if that runs, else the only cluster that runs, else the only one there is. A command
    that changes what runs means `default` if that exists: done twice, it must not reach another one.
    """
    default = Cluster()
    if default.is_running or (changes and default.exists):
        return DEFAULT
    for found in (running_clusters(), homes.cluster_names(default.home)):
        if found:
            return found[0] if len(found) == 1 else DEFAULT
    return DEFAULT


def running_clusters() -> list[str]:
    """Names of the clusters of which a node runs. One with a broken description is left out."""
    found = []
    for cluster in clusters():
        with suppress(ClusterError):
            found += [cluster.name] if cluster.is_running else []
    return found
