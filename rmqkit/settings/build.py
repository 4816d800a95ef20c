"""Builds the sections of a configuration from settings as they were written, in these steps:

- Read each source (a file, the command line) on its own. Two spellings of one key must agree in it.
- Merge the sources; later ones win.
- Add defaults, and values that follow from others.
- Check values that must fit together.
- Build the sections from the rows that set their fields.

Every error is a ConfigError of one line that names key, value and place.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from rmqkit.errors import ConfigError
from rmqkit.settings.access_sections import PLAIN_ACL_FILE
from rmqkit.settings.host import Host, expand, expand_path
from rmqkit.settings.keys import KIND_NAMES, KINDS, declared, find, rows
from rmqkit.settings.node_sections import check_controller, peers_of
from rmqkit.settings.sections import Sections
from rmqkit.settings.sources import PLUGIN, Setting
from rmqkit.settings.table import Kind, Refusal, Row, Status, Type, Value, parse, show
from rmqkit.suggestions import suggest

PluginValues = Mapping[str, Mapping[str, str]]


def unknown(kind: Kind, setting: Setting) -> ConfigError:
    """Return the error for a key that this kind of node does not have."""
    for other in KINDS:
        if other != kind and find(other, setting.key):
            return ConfigError(
                f"config: {setting.key!r}{setting.where} is a key of a {KIND_NAMES[other]}, this is a {KIND_NAMES[kind]}"
            )
    return ConfigError(f"config: unknown key {setting.key!r}{setting.where}{suggest(setting.key, rows(kind))}")


def refuse(row: Row, refusal: Refusal, value: Value, where: str) -> ConfigError:
    """Return the error for a refused value."""
    return ConfigError(f"config: {row.key} = {show(value)}{where} is refused: {refusal.why}")


def read_source(settings: Iterable[Setting], kind: Kind, host: Host) -> dict[str, tuple[Value, str]]:
    """Return key -> (value, place) of one source. Raises ConfigError.

    Keys of plug-ins (`plugin.NAME.KEY`) are not checked.
    """
    found: dict[str, tuple[Value, str]] = {}
    written: dict[str, Setting] = {}
    for setting in settings:
        if setting.key.startswith(PLUGIN + "."):
            found[setting.key] = (plugin_value(setting), setting.where)
            continue
        row = find(kind, setting.key)
        if row is None:
            raise unknown(kind, setting)
        value = parse(row, setting.value, setting.where)
        if row.type is Type.PATH and row.status is Status.WORKS:
            value = expand_path(str(value), host)
        if row.refusal and row.refusal.hits(value):
            raise refuse(row, row.refusal, value, setting.where)
        earlier = written.get(row.key)
        if earlier and earlier.key != setting.key and found[row.key][0] != value:
            raise ConfigError(
                f"config: {earlier.key} = {show(found[row.key][0])}{earlier.where} and {setting.key} = {show(value)}"
                f"{setting.where} are spellings of the same key, but their values differ"
            )
        found[row.key] = (value, setting.where)
        written[row.key] = setting
    return found


def plugin_value(setting: Setting) -> Value:
    if len(setting.key.split(".", 2)) < 3:
        raise ConfigError(f"config: {setting.key!r}{setting.where}: must be plugin.NAME.KEY")
    if not isinstance(setting.value, bool | int | float | str):
        raise ConfigError(f"config: {setting.key}{setting.where} must be text, a number, true or false")
    return show(setting.value)


def merge(sources: Iterable[dict[str, tuple[Value, str]]]) -> dict[str, tuple[Value, str]]:
    merged: dict[str, tuple[Value, str]] = {}
    for source in sources:
        merged.update(source)
    return merged


def default_of(row: Row, host: Host) -> Value | None:
    """Return the default of a row on this machine, None if it has none."""
    if not isinstance(row.default, str) or "${" not in row.default:
        return row.default
    if row.type is Type.PATH and row.status is Status.WORKS:
        return expand_path(row.default, host)
    return expand(row.default, host)


def plugin_tables(values: Mapping[str, Value]) -> PluginValues:
    """Return the settings of plug-ins: name -> key -> text."""
    tables: dict[str, dict[str, str]] = {}
    for key, value in values.items():
        if key.startswith(PLUGIN + "."):
            _, name, rest = key.split(".", 2)
            tables.setdefault(name, {})[rest] = str(value)
    return tables


def complete(kind: Kind, written: Mapping[str, Value], host: Host) -> dict[str, Value]:
    """Return a value for every key of the kind: as written, by default, or derived from others.

    As in BrokerStartup.buildBrokerController, a port for replication that is not above 0 becomes
    the main port + 1, and a master has id 0.
    """
    values = dict(written)
    for key, row in rows(kind).items():
        if key not in values:
            default = default_of(row, host)
            if default is not None:
                values[key] = default
    if kind == "broker":
        port = int(values["listenPort"])
        if int(values["haListenPort"]) <= 0:
            values["haListenPort"] = port + 1 if port else 0
        if not values.get("storePathCommitLog"):
            values["storePathCommitLog"] = f"{values['storePathRootDir']}/commitlog"
        if values["enableControllerMode"]:
            complete_elected(values)
        elif values["brokerRole"] != "SLAVE":
            values["brokerId"] = 0
        complete_acl(values, host)
    else:
        complete_controller(kind, values, host)
    return values


def complete_controller(kind: Kind, values: dict[str, Value], host: Host) -> None:
    """Add the default folder, and the port: as in Apache's controller, that of the own peer."""
    if not values.get("controllerStorePath"):
        values["controllerStorePath"] = expand_path("${user.home}/rmqkit-controller", host)
    if kind == "controller":
        for each in peers_of(values.get("controllerDLegerPeers", "")):
            if each.id == values.get("controllerDLegerSelfId"):
                values["listenPort"] = each.port


def complete_elected(values: dict[str, Value]) -> None:
    """Make a broker of controller mode a slave until a controller elects it, as Apache's does.

    Its id is replaced by the one that it has or gets in its group.
    """
    values["brokerRole"] = "SLAVE"
    values["brokerId"] = max(1, int(values["brokerId"]))
    for key, name in (("storePathEpochFile", "epochFileCheckpoint"), ("storePathBrokerIdentity", "brokerIdentity")):
        if not values.get(key):
            values[key] = f"{str(values['storePathRootDir']).rstrip('/')}/{name}"


def complete_acl(values: dict[str, Value], host: Host) -> None:
    """Add the default path of plain_acl.yml if it is needed. Raises ConfigError without one."""
    used = [name for name in ("aclEnable", "migrateAuthFromV1Enabled") if values[name]]
    if used and not values.get(PLAIN_ACL_FILE):
        home = host.lookup("rocketmq.home.dir")
        if not home:
            raise ConfigError(f"config: {used[0]} = true needs a file: set {PLAIN_ACL_FILE}, or the variable ROCKETMQ_HOME")
        values[PLAIN_ACL_FILE] = expand_path(f"{home}/conf/plain_acl.yml", host)


def check_together(kind: Kind, values: Mapping[str, Value]) -> None:
    """Raises ConfigError for values that contradict each other."""
    low, high, most = (int(values[key]) for key in ("outboxLowWater", "outboxHighWater", "outboxMax"))
    if not low <= high <= most:
        raise ConfigError("config: outboxLowWater, outboxHighWater and outboxMax must not decrease in this order")
    if kind == "broker":
        check_broker(values)
    else:
        peers, self_id = values.get("controllerDLegerPeers"), values.get("controllerDLegerSelfId")
        check_controller(None if peers is None else str(peers), None if self_id is None else str(self_id))
        if kind == "controller" and values["metricsExporterType"] == "PROM":
            raise ConfigError("config: metricsExporterType = PROM is refused: a controller on its own has no metrics yet")
        if kind == "nameserver" and values["enableControllerInNamesrv"] and not peers:
            raise ConfigError(
                "config: enableControllerInNamesrv = true needs controllerDLegerPeers and controllerDLegerSelfId: they "
                "name the controller's address"
            )


def check_broker(values: Mapping[str, Value]) -> None:
    """Raises ConfigError for values of a broker that contradict each other."""
    port, ha_port = int(values["listenPort"]), int(values["haListenPort"])
    if port and not 3 <= port <= 65534:
        raise ConfigError(
            f"config: listenPort = {port}: must be 0, or from 3 to 65534 (the ports two below and one above belong to it)"
        )
    if ha_port and ha_port in (port, port - 2):
        raise ConfigError(f"config: haListenPort = {ha_port}: the broker already listens there (listenPort = {port})")
    if int(values["maxMessageSize"]) >= int(values["frameSizeMax"]):
        raise ConfigError(
            f"config: maxMessageSize = {values['maxMessageSize']}: must be below frameSizeMax = {values['frameSizeMax']}"
        )
    check_replicas(values)
    if values["enableControllerMode"]:
        check_elected(values)
    if values["fetchNamesrvAddrByAddressServer"] and not values["namesrvAddr"]:
        raise ConfigError(
            "config: fetchNamesrvAddrByAddressServer = true without namesrvAddr is refused: address servers are not "
            "supported yet, so the broker would register nowhere"
        )


def check_replicas(values: Mapping[str, Value]) -> None:
    """Raises ConfigError for replica settings that contradict each other.

    Sources: `BrokerStartup.buildBrokerController`, `BrokerContainer.addBroker`.
    """
    total, in_sync, least = (int(values[key]) for key in ("totalReplicas", "inSyncReplicas", "minInSyncReplicas"))
    if values["brokerRole"] == "SLAVE" and int(values["brokerId"]) <= 0:
        raise ConfigError(f"config: brokerId = {values['brokerId']}: a SLAVE needs an id above 0, unique in its group")
    if least > in_sync:
        raise ConfigError(f"config: minInSyncReplicas = {least} is above inSyncReplicas = {in_sync}")
    if total > 1 and in_sync > total:
        raise ConfigError(f"config: inSyncReplicas = {in_sync} is above totalReplicas = {total}")
    if values["drillDefects"] and not values["drillFaultsEnable"]:
        raise ConfigError("config: drillDefects is refused: it breaks promises, so it needs drillFaultsEnable = true")


#: settings that contradict controller mode, with the value that is refused and the reason
NOT_ELECTED: tuple[tuple[str, Value, str], ...] = (
    ("enableSlaveActingMaster", True, "the controllers elect a master; no slave acts for it"),
    ("transientStorePoolEnable", True, "a slave that becomes master needs its log in files"),
    ("lockMode", "strict", "the members of a group do not vote on locks in controller mode: use lockMode = loose"),
    ("lockInStrictMode", True, "the members of a group do not vote on locks in controller mode"),
    ("aclEnable", True, "users of ACL 1.0 need a master that stays: create users with authenticationEnabled"),
    ("migrateAuthFromV1Enabled", True, "users of ACL 1.0 need a master that stays: create them again"),
)


def check_elected(values: Mapping[str, Value]) -> None:
    """Raises ConfigError for values that contradict controller mode."""
    if not values["controllerAddr"]:
        raise ConfigError(
            "config: enableControllerMode = true without controllerAddr is refused: nobody would elect a master"
        )
    for key, value, why in NOT_ELECTED:
        if values.get(key) == value:
            raise ConfigError(f"config: {key} = {show(value)} with enableControllerMode = true is refused: {why}")
    if values.get("haMasterAddress"):
        raise ConfigError("config: haMasterAddress with enableControllerMode = true is refused: the master changes")
    low = 2 * int(values["brokerHeartbeatInterval"])
    if int(values["controllerHeartBeatTimeoutMills"]) <= low:
        raise ConfigError(f"config: controllerHeartBeatTimeoutMills must be above two heartbeat intervals, {low} ms")


#: our key, Apache's key for the same choice, and our value -> the equivalent value of Apache's key
PAIRS: tuple[tuple[str, str, Mapping[str, bool]], ...] = (
    ("lockMode", "lockInStrictMode", {"strict": True, "loose": False}),
    ("escapeStrategy", "enableRemoteEscape", {"auto": True, "remote": True, "local": False, "none": False}),
)


def check_pairs(written: Mapping[str, tuple[Value, str]]) -> None:
    """Raises ConfigError if a key of ours and Apache's key for the same choice disagree."""
    for ours, theirs, meanings in PAIRS:
        if ours in written and theirs in written:
            (one, one_place), (two, two_place) = written[ours], written[theirs]
            if meanings.get(str(one), two) != two:
                raise ConfigError(f"config: {ours} = {one}{one_place} and {theirs} = {show(two)}{two_place} disagree")


def writable(values: Mapping[str, str]) -> dict[str, str]:
    """Return the values that a running broker reports in a form that another broker accepts.

    A running broker reports every key, including the default of a key whose pair decides. If two
    keys of a pair disagree, the one that has its default is left out.
    """
    kept = dict(values)
    for ours, theirs, meanings in PAIRS:
        meaning = meanings.get(values.get(ours, ""))
        if theirs in values and meaning is not None and show(meaning) != values[theirs].lower():
            del kept[ours if values[ours] == rows("broker")[ours].default else theirs]
    return kept


def notes_of(kind: Kind, written: Mapping[str, tuple[Value, str]]) -> tuple[str, ...]:
    """Return the lines to log about keys without effect, one line for each reason."""
    groups: dict[str, list[str]] = {}
    for key, (value, _) in written.items():
        row = rows(kind).get(key)
        if row is None or value == row.default:
            continue
        if row.status is Status.NO_EFFECT:
            groups.setdefault(f"no effect here ({row.text})", []).append(key)
        elif row.status is Status.LATER:
            groups.setdefault(f"no effect yet ({row.text})", []).append(key)
    notes = [f"config: {', '.join(keys)}: {reason}" for reason, keys in groups.items()]
    is_slave = written.get("brokerRole", ("", ""))[0] == "SLAVE" or written.get("enableControllerMode", (False, ""))[0]
    if kind == "broker" and not is_slave and written.get("brokerId", (0, ""))[0] != 0:
        notes.append(f"config: brokerId = {written['brokerId'][0]} is replaced by 0: this broker is a master")
    return tuple(notes)


def build_sections(kind: Kind, values: Mapping[str, Value], host: Host) -> dict[str, Any]:
    """Return section name -> section. Sections of the other kind of node get their defaults."""
    fed: dict[str, dict[str, object]] = {each.name: {} for each in fields(Sections)}
    for section, name, row, kinds in declared():
        value = values.get(row.key) if kind in kinds else default_of(row, host)
        if value is not None:
            fed[section][name] = row.convert(value) if row.convert else value
    if kind == "broker":
        port = int(values["listenPort"])
        fed["network"]["vip_listen_port"] = port - 2 if port else 0
    else:
        fed["paths"]["store_path_commit_log"] = f"{fed['paths']['store_path_root_dir']}/commitlog"
    fed["plugins"]["values"] = plugin_tables(values)
    return {each.name: each.metadata["make"](**fed[each.name]) for each in fields(Sections)}
