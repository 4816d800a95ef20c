"""Section of a controller, alone or inside a name server.

The keys are those of Apache's `ControllerConfig`. `controllerType` names a log of our own there: an
rmqkit controller reads neither the files nor the traffic of Apache's DLedger or jRaft.
"""

from dataclasses import dataclass
from typing import NamedTuple

from rmqkit.errors import ConfigError
from rmqkit.settings.declaration import key
from rmqkit.settings.table import Refusal, Type, Value

#: Apache's port of a controller that runs alone (`ControllerStartup`)
CONTROLLER_PORT = 19876
_PEER = r"[^-;\s]+-[^;\s]+:[0-9]{1,5}"


class PeerSetting(NamedTuple):
    """A controller of the group, from `controllerDLegerPeers`."""

    id: str
    host: str
    port: int


def peers_of(value: Value) -> tuple[PeerSetting, ...]:
    """Return the peers of `n0-host:port;n1-host:port`."""
    found = []
    for text in str(value).split(";"):
        if text.strip():
            peer_id, _, address = text.strip().partition("-")
            host, _, port = address.rpartition(":")
            found.append(PeerSetting(peer_id, host.removeprefix("[").removesuffix("]"), int(port)))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """Settings of a controller."""

    in_nameserver: bool = key(
        "enableControllerInNamesrv",
        False,
        "a controller runs in the process of the name server, at its own port of controllerDLegerPeers",
        only="nameserver",
    )
    log_type: str = key(
        "controllerType",
        "DLedger",
        "log of the decisions: `single` (one controller), `raft` (several), or a plug-in's; `DLedger` means `single` "
        "with one peer and `raft` with more",
        refusal=Refusal(
            why="its ports and members come from other keys: set raft, and controllerDLegerPeers", values=("jRaft",)
        ),
    )
    group: str = key(
        "controllerDLegerGroup", None, "name of the group of controllers; the same at each of them", unset="controllers"
    )
    peers: tuple[PeerSetting, ...] = key(
        "controllerDLegerPeers",
        None,
        "all controllers of the group, `n0-host:port;n1-host:port`; brokers and other controllers use this port",
        convert=peers_of,
        unset=(),
        pattern=rf"(?:{_PEER}(?:;{_PEER})*;?)?",
        allowed="ID-HOST:PORT entries separated by ;",
    )
    self_id: str = key("controllerDLegerSelfId", None, "id of this controller in controllerDLegerPeers", unset="n0")
    store_path: str = key(
        "controllerStorePath",
        "",
        "folder of the controller's files; empty: `rmqkit-controller` in the user's home folder",
        type=Type.PATH,
    )
    bind_address: str = key(
        "bindAddress", "0.0.0.0", "address to listen on", pattern=r"\S+", allowed="an address", only="controller"
    )
    listen_port: int = key(
        "listenPort",
        CONTROLLER_PORT,
        "port to listen on without controllerDLegerPeers; 0 lets the system choose",
        low=0,
        high=65_535,
        only="controller",
    )
    config_store_path: str = key(
        "configStorePath",
        "${user.home}/controller/controller.properties",
        "file with settings that were changed at run time",
        type=Type.PATH,
        only="controller",
    )
    scan_inactive_master_interval_ms: int = key(
        "scanInactiveMasterInterval",
        5000,
        "most ms between two looks for sets without a living master; a death that is noticed is acted on at once",
        type=Type.LONG,
        low=10,
        live=True,
    )
    elect_unclean: bool = key(
        "enableElectUncleanMaster",
        False,
        "if no member of the SyncStateSet is alive, another one becomes master; acknowledged messages may be lost",
        live=True,
    )
    notify_role_changed: bool = key(
        "notifyBrokerRoleChanged", True, "the members of a set are told at once who is elected", live=True
    )
    election_timeout_ms: int = key(
        "controllerElectionTimeoutMillis",
        1000,
        "ms after which controllers that hear nothing of their leader elect another one",
        low=50,
        high=60_000,
    )
    snapshot_entries: int = key(
        "controllerSnapshotEntries", 1000, "entries of the log after which it is replaced by a snapshot", low=10
    )


def check_controller(peers: str | None, self_id: str | None) -> None:
    """Raises ConfigError for a group of controllers that cannot work."""
    found = peers_of(peers or "")
    ids = [each.id for each in found]
    if len(set(ids)) < len(ids):
        raise ConfigError(f"config: controllerDLegerPeers = {peers}: an id occurs twice")
    if found and self_id not in ids:
        raise ConfigError(
            f"config: controllerDLegerSelfId = {self_id}: must be an id of controllerDLegerPeers: {', '.join(ids)}"
        )
    wrong = [each for each in found if not 0 < each.port <= 65_535]
    if wrong:
        raise ConfigError(f"config: controllerDLegerPeers: port {wrong[0].port} of {wrong[0].id} must be from 1 to 65535")
    local = [each for each in found if is_loopback(each.host)]
    if local and len(local) < len(found):
        raise ConfigError(
            f"config: controllerDLegerPeers: {local[0].host} of {local[0].id} is this machine only, so the controllers on "
            "other machines cannot reach it: give its address in the network"
        )


def is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")
