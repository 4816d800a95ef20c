"""Files and overrides become a NodeConfig. A mistake is one line with key, value and location."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqkit import config
from rmqkit.config import BrokerRole, FlushDiskType, Host
from rmqkit.errors import ConfigError

HOST = Host(
    home="/home/ann", folder="/work", name="node7", address="10.0.0.7", environment={"ROCKETMQ_HOME": "/opt/rocketmq"}
)


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def broker(*overrides: str, host: Host = HOST) -> config.NodeConfig:
    return config.load([], overrides, "broker", host=host)


def error(kind: str, *overrides: str, paths: tuple[str, ...] = ()) -> str:
    with pytest.raises(ConfigError) as caught:
        config.load(paths, overrides, kind, host=HOST)  # type: ignore[arg-type]
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith("config: ")
    return text


# --- defaults and derived values


def test_a_broker_without_a_file_is_apaches_default_broker():
    node = broker()
    assert node.network.listen_port == 10911
    assert node.network.vip_listen_port == 10909
    assert node.network.ha_listen_port == 10912
    assert node.network.broker_ip1 == "10.0.0.7"
    assert node.identity.broker_name == "node7"
    assert node.identity.broker_cluster_name == "DefaultCluster"
    assert node.identity.broker_role is BrokerRole.ASYNC_MASTER
    assert node.paths.store_path_root_dir == "/home/ann/store"
    assert node.paths.store_path_commit_log == "/home/ann/store/commitlog"
    assert node.flush.flush_disk_type is FlushDiskType.ASYNC_FLUSH
    assert node.consume_queue.mapped_file_size_consume_queue == 300_000 * 20
    assert node.notes == ()


def test_a_name_server_without_a_file_is_apaches_default_name_server():
    node = config.load([], [], "nameserver", host=HOST)
    assert node.nameserver.listen_port == 9876
    assert node.nameserver.kv_config_path == "/home/ann/namesrv/kvConfig.json"
    assert node.nameserver.wait_for_service_ms == 45_000


def test_a_name_servers_ports_leave_the_brokers_sections_alone():
    node = config.load([], ["listenPort=1234"], "nameserver", host=HOST)
    assert node.nameserver.listen_port == 1234
    assert node.network.listen_port == 10911


def test_the_ports_follow_from_the_main_port():
    """haListenPort is as in BrokerStartup.buildBrokerController.

    listenPort - 2 is as in NettyRemotingServer's fast server.
    """
    node = broker("listenPort=20911")
    assert (node.network.vip_listen_port, node.network.ha_listen_port) == (20909, 20912)
    assert broker("listenPort=20911", "haListenPort=30000").network.ha_listen_port == 30000
    assert broker("listenPort=20911", "haListenPort=-1").network.ha_listen_port == 20912


def test_port_0_lets_the_system_choose_all_three():
    node = broker("listenPort=0")
    assert (node.network.listen_port, node.network.vip_listen_port, node.network.ha_listen_port) == (0, 0, 0)


def test_the_commit_log_is_below_the_store_by_default():
    """MessageStoreConfig.getStorePathCommitLog."""
    assert broker("storePathRootDir=/data").paths.store_path_commit_log == "/data/commitlog"
    assert broker("storePathRootDir=/data", "storePathCommitLog=/log").paths.store_path_commit_log == "/log"


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ("${user.home}/s", "/home/ann/s"),
        ("${ROCKETMQ_HOME}/s", "/opt/rocketmq/s"),
        ("~/s", "/home/ann/s"),
        ("s/../t", "/work/t"),
        ("/s/", "/s"),
    ],
)
def test_paths_are_expanded_and_made_absolute(written: str, path: str):
    assert broker(f"storePathRootDir={written}").paths.store_path_root_dir == path


def test_a_path_with_an_unset_variable_is_an_error():
    assert error("broker", "storePathRootDir=${NOWHERE}/s") == "config: ${NOWHERE} in '${NOWHERE}/s' is not set"


def test_the_name_servers_come_from_the_environment_when_nothing_is_written():
    host = Host(environment={"NAMESRV_ADDR": "a:1;b:2"})
    assert broker(host=host).network.namesrv_addrs == ("a:1", "b:2")
    assert broker("namesrvAddr=c:3;", host=host).network.namesrv_addrs == ("c:3",)


def test_a_master_has_id_0_and_it_is_said_when_another_was_written():
    """BrokerStartup.buildBrokerController."""
    node = broker("brokerId=3")
    assert node.identity.broker_id == 0
    assert node.values["brokerId"] == 0
    assert node.notes == ("config: brokerId = 3 is replaced by 0: this broker is a master",)


@pytest.mark.parametrize(("written", "held"), [(5_000, 10_000), (20_000, 20_000), (90_000, 60_000)])
def test_the_registration_period_is_held_within_10_and_60_seconds(written: int, held: int):
    """BrokerController.start."""
    assert broker(f"registerNameServerPeriod={written}").registration.register_name_server_period_ms == held


@pytest.mark.parametrize(
    ("key", "field", "written", "held"),
    [
        ("diskMaxUsedSpaceRatio", "disk_max_used_space_ratio", 5, 10),
        ("diskMaxUsedSpaceRatio", "disk_max_used_space_ratio", 99, 95),
        ("diskSpaceWarningLevelRatio", "disk_space_warning_level_ratio", 99, 90),
        ("diskSpaceWarningLevelRatio", "disk_space_warning_level_ratio", 10, 35),
        ("diskSpaceCleanForciblyRatio", "disk_space_clean_forcibly_ratio", 99, 85),
        ("diskSpaceCleanForciblyRatio", "disk_space_clean_forcibly_ratio", 10, 30),
    ],
)
def test_disk_ratios_are_held_within_apaches_bounds(key: str, field: str, written: int, held: int):
    """The bounds are those of MessageStoreConfig.getDiskMaxUsedSpaceRatio and
    DefaultMessageStore.CleanCommitLogService.getDiskSpace*Ratio.
    """
    node = broker(f"{key}={written}")
    assert getattr(node.retention, field) == held
    assert node.values[key] == written


def test_a_consume_queue_file_holds_whole_entries():
    """MessageStoreConfig.getMappedFileSizeConsumeQueue."""
    assert broker("mappedFileSizeConsumeQueue=101").consume_queue.mapped_file_size_consume_queue == 120


# --- files


def test_an_apache_conf_is_taken_as_it_is(tmp_path: Path):
    """The file is Apache's distribution/conf/broker.conf with keys that guides on the web add."""
    path = write(
        tmp_path,
        "broker.conf",
        """
# Licensed
brokerClusterName = DefaultCluster
brokerName = broker-a
brokerId = 0
deleteWhen = 04
fileReservedTime = 48
brokerRole = ASYNC_MASTER
flushDiskType = ASYNC_FLUSH
namesrvAddr=127.0.0.1:9876;127.0.0.1:9877
storePathRootDir=/data/store
storePathConsumeQueue=/data/store/consumequeue
mapedFileSizeCommitLog=1048576
sendMessageThreadPoolNums=64
pullMessageThreadPoolNums=64
checkTransactionMessageEnable=true
""",
    )
    node = config.load([path], [], "broker", host=HOST)
    assert node.identity.broker_name == "broker-a"
    assert node.retention.file_reserved_time_hours == 48
    assert node.network.namesrv_addrs == ("127.0.0.1:9876", "127.0.0.1:9877")
    assert node.commit_log.mapped_file_size_commit_log == 1_048_576
    assert node.notes == (
        "config: storePathConsumeQueue: no effect here (Apache never read it: the path follows from storePathRootDir)",
        "config: sendMessageThreadPoolNums, pullMessageThreadPoolNums: no effect here "
        "(a node is one thread: there is no thread pool or queue in front of it to size)",
        "config: checkTransactionMessageEnable: no effect here (guides on the web mention it, but Apache does not read it)",
    )


TOML = """
namesrvAddr = ["127.0.0.1:9876", "127.0.0.1:9877"]
storageEngine = "memory"

[broker]
brokerName = "broker-a"
fileReservedTime = 1
autoCreateTopicEnable = false
tls.server.mode = "disabled"

[nameserver]
listenPort = 9999

[plugin.box]
size = 10
deep = true
"""


def test_a_toml_file_has_keys_at_the_top_and_under_its_kind(tmp_path: Path):
    node = config.load([write(tmp_path, "node.toml", TOML)], [], "broker", host=HOST)
    assert node.network.namesrv_addrs == ("127.0.0.1:9876", "127.0.0.1:9877")
    assert node.commit_log.storage_engine == "memory"
    assert node.identity.broker_name == "broker-a"
    assert node.topics.auto_create_topic_enable is False
    assert node.network.listen_port == 10911
    assert node.values["tls.server.mode"] == "disabled"
    assert node.plugins.values == {"box": {"size": "10", "deep": "true"}}


def test_later_files_win_and_overrides_win_over_files(tmp_path: Path):
    one = write(tmp_path, "one.toml", 'brokerName = "one"\nfileReservedTime = 1\nmapedFileSizeCommitLog = 2048')
    two = write(tmp_path, "two.conf", "brokerName = two\nfileReservedTime = 2\nmappedFileSizeCommitLog = 4096")
    node = config.load([one, two], ["fileReservedTime=3"], "broker", host=HOST)
    assert node.identity.broker_name == "two"
    assert node.commit_log.mapped_file_size_commit_log == 4096
    assert node.retention.file_reserved_time_hours == 3
    assert config.load([two, one], [], "broker", host=HOST).identity.broker_name == "one"


def test_plugin_keys_come_from_every_source(tmp_path: Path):
    conf = write(tmp_path, "n.conf", "plugins = box; bag\nplugin.box.size = 10\nplugin.box.a.b = x")
    node = config.load([conf], ["plugin.box.size=11"], "nameserver", host=HOST)
    assert node.plugins.plugins == ("box", "bag")
    assert node.plugins.values == {"box": {"size": "11", "a.b": "x"}}


def test_values_and_text_for_admin_calls_have_apaches_names_and_javas_form():
    node = broker("storePathRootDir=/data", "haListenPort=0")
    assert node.values["autoCreateTopicEnable"] is True
    lines = node.properties_text().splitlines()
    assert lines == sorted(lines)
    assert "haListenPort=10912" in lines
    assert "autoCreateTopicEnable=true" in lines
    assert "storePathCommitLog=/data/commitlog" in lines
    assert not [line for line in lines if line.startswith("sendMessageThreadPoolNums")]
    assert config.parse_properties(node.properties_text())["logicalDiskSpaceCleanForciblyThreshold"] == "0.8"


def test_secrets_are_not_shown():
    node = broker('initAuthenticationUser={"username":"ann","password":"secret"}', "tls.server.keyPassword=secret")
    assert node.values["tls.server.keyPassword"] == "secret"
    assert "secret" not in node.properties_text()


def test_a_config_comes_back_from_its_own_text(tmp_path: Path):
    node = broker("brokerName=b\\", "regionId=a\nlistenPort=1\\n", "flushDiskType=SYNC_FLUSH", "outboxMax=99999999")
    again = config.load([write(tmp_path, "x.conf", node.properties_text())], [], "broker", host=HOST)
    assert again.values == node.values
    assert again.flush == node.flush


# --- mistakes


def test_a_typo_names_file_line_and_the_nearest_key(tmp_path: Path):
    conf = write(tmp_path, "b.conf", "# x\nbrokerName = a\nflushDiskTyp = SYNC_FLUSH\n")
    assert (
        error("broker", paths=(conf,))
        == f"config: unknown key 'flushDiskTyp' in {conf} line 3; did you mean flushDiskType?"
    )
    toml = write(tmp_path, "b.toml", 'brokerName = "a"\n\n[broker]\nflushDiskTyp = "SYNC_FLUSH"\n')
    assert (
        error("broker", paths=(toml,))
        == f"config: unknown key 'flushDiskTyp' in {toml} line 4; did you mean flushDiskType?"
    )


def test_a_typo_in_an_override_says_where_too():
    assert error("broker", "flushdisktype=x") == "config: unknown key 'flushdisktype' in --set; did you mean flushDiskType?"


def test_a_key_like_no_other_gets_no_hint():
    assert error("broker", "zzzzqqqq=1") == "config: unknown key 'zzzzqqqq' in --set"


def test_a_key_of_the_other_kind_of_node_is_named_as_such():
    assert (
        error("broker", "kvConfigPath=/x") == "config: 'kvConfigPath' in --set is a key of a name server, this is a broker"
    )
    assert (
        error("nameserver", "brokerName=a") == "config: 'brokerName' in --set is a key of a broker, this is a name server"
    )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("listenPort=abc", "config: listenPort = 'abc' in --set: must be a whole number from 0 to 65535"),
        ("listenPort=70000", "config: listenPort = '70000' in --set: must be a whole number from 0 to 65535"),
        ("listenPort=", "config: listenPort = '' in --set: must be a whole number from 0 to 65535"),
        ("fileReservedTime=1_0", "config: fileReservedTime = '1_0' in --set: must be a whole number, at least 0"),
        (
            "fileReservedTime=2147483648",
            "config: fileReservedTime = '2147483648' in --set: must be a whole number, at least 0",
        ),
        ("autoCreateTopicEnable=yes", "config: autoCreateTopicEnable = 'yes' in --set: must be true or false"),
        ("flushDiskType=SYNC", "config: flushDiskType = 'SYNC' in --set: must be one of SYNC_FLUSH, ASYNC_FLUSH"),
        ("deleteWhen=24", 'config: deleteWhen = \'24\' in --set: must be hours of the day, such as "04" or "04;16"'),
        ("namesrvAddr=localhost", "config: namesrvAddr = 'localhost' in --set: must be host:port;host:port"),
        (
            "logicalDiskSpaceCleanForciblyThreshold=x",
            "config: logicalDiskSpaceCleanForciblyThreshold = 'x' in --set: must be a number",
        ),
        ("brokerName=", "config: brokerName = '' in --set: must be 1 to 255 characters without spaces"),
    ],
)
def test_a_wrong_value_names_key_value_and_what_is_allowed(override: str, message: str):
    assert error("broker", override) == message


@pytest.mark.parametrize(
    "line",
    [
        "autoCreateTopicEnable = 1",
        "fileReservedTime = true",
        "fileReservedTime = 1.5",
        'fileReservedTime = "x"',
        "fileReservedTime = [1]",
        "brokerName = 1",
        "namesrvAddr = [1]",
        "brokerName = 2024-01-01",
        "flushDiskType = false",
    ],
)
def test_a_toml_value_of_another_type_is_an_error(tmp_path: Path, line: str):
    path = write(tmp_path, "n.toml", "# head\n" + line)
    assert f"{path} line 2: must be" in error("broker", paths=(path,))


def test_tables_that_mean_nothing_are_an_error(tmp_path: Path):
    path = write(tmp_path, "n.toml", "[brokers]\nbrokerName = 'a'")
    assert "unknown table [brokers]" in error("broker", paths=(path,))
    path = write(tmp_path, "n.toml", "[broker]\n[broker.tls.server]\nmodus = 'a'")
    assert "unknown key 'tls.server.modus'" in error("broker", paths=(path,))
    path = write(tmp_path, "n.toml", "[plugin]\nbox = 1")
    assert "plugin.box" in error("broker", paths=(path,))


def test_two_spellings_that_disagree_are_an_error_naming_both(tmp_path: Path):
    path = write(tmp_path, "b.conf", "mapedFileSizeCommitLog = 2048\nmappedFileSizeCommitLog = 4096")
    assert error("broker", paths=(path,)) == (
        f"config: mapedFileSizeCommitLog = 2048 in {path} line 1 and mappedFileSizeCommitLog = 4096 in {path} line 2 "
        "are spellings of the same key, but their values differ"
    )
    path = write(tmp_path, "b.conf", "mapedFileSizeCommitLog = 4096\nmappedFileSizeCommitLog = 4096")
    assert config.load([path], [], "broker", host=HOST).commit_log.mapped_file_size_commit_log == 4096


@pytest.mark.parametrize(
    ("ours", "theirs", "agree"),
    [
        ("lockMode=strict", "lockInStrictMode=false", False),
        ("lockMode=loose", "lockInStrictMode=true", False),
        ("lockMode=loose", "lockInStrictMode=false", True),
        ("escapeStrategy=auto", "enableRemoteEscape=false", False),
        ("escapeStrategy=local", "enableRemoteEscape=false", True),
    ],
)
def test_our_key_and_apaches_for_the_same_choice_must_agree(ours: str, theirs: str, agree: bool):
    if agree:
        broker(ours, theirs)
    else:
        text = error("broker", ours, theirs)
        assert ours.partition("=")[0] in text
        assert theirs.partition("=")[0] in text


@pytest.mark.parametrize(
    ("kind", "overrides"),
    [
        ("broker", ["aclEnable=true"]),
        ("broker", ["authenticationEnabled=true"]),
        ("broker", ["authorizationEnabled=true"]),
        ("broker", ["enableControllerMode=true"]),
        ("broker", ["enableControllerMode=true", "controllerAddr=h:1", "enableSlaveActingMaster=true"]),
        ("broker", ["enableControllerMode=true", "controllerAddr=h:1", "transientStorePoolEnable=true"]),
        ("broker", ["enableControllerMode=true", "controllerAddr=h:1", "lockMode=strict"]),
        ("broker", ["enableControllerMode=true", "controllerAddr=h:1", "haMasterAddress=h:2"]),
        ("broker", ["fetchControllerAddrByDnsLookup=true"]),
        ("broker", ["enableDLegerCommitLog=true"]),
        ("broker", ["duplicationEnable=true"]),
        ("broker", ["tls.server.mode=permissive"]),
        ("broker", ["tls.server.mode=enforcing"]),
        ("nameserver", ["tls.server.mode=enforcing"]),
        ("controller", ["controllerType=jRaft"]),
        ("broker", ["drillDefects=ack-before-sync"]),
        ("broker", ["storeType=defaultRocksDB"]),
        ("broker", ["configManagerVersion=v2"]),
        ("broker", ["messageStorePlugIn=org.example.Store"]),
        ("broker", ["readOnlyCommitLogStorePaths=/old"]),
        ("broker", ["enableMultiDispatch=true"]),
        ("broker", ["fetchNamesrvAddrByAddressServer=true"]),
    ],
)
def test_what_would_break_a_promise_ends_the_start(kind: str, overrides: list[str]):
    text = error(kind, *overrides)
    assert "is refused: " in text
    assert overrides[-1].partition("=")[0] in text or overrides[0].partition("=")[0] in text


@pytest.mark.parametrize(
    ("overrides", "wanted"),
    [
        (["brokerRole=SLAVE"], "brokerId = 0: a SLAVE needs an id above 0"),
        (["brokerRole=SLAVE", "brokerId=-1"], "needs an id above 0"),
        (["minInSyncReplicas=2"], "minInSyncReplicas = 2 is above inSyncReplicas = 1"),
        (["totalReplicas=2", "inSyncReplicas=3"], "inSyncReplicas = 3 is above totalReplicas = 2"),
        (["totalReplicas=0"], "from 1 to 9"),
        (["haMasterAddress=nowhere"], "host:port"),
    ],
)
def test_replicas_that_make_no_sense_together_are_named(overrides: list[str], wanted: str):
    assert wanted in error("broker", *overrides)


@pytest.mark.parametrize(
    ("kind", "peers", "self_id", "wanted"),
    [
        ("controller", "n0-10.0.0.1:9000;n1-127.0.0.1:9000", "n0", "127.0.0.1 of n1 is this machine only"),
        ("controller", "n0-10.0.0.1:9000;n0-10.0.0.2:9000", "n0", "an id occurs twice"),
        ("controller", "n0-10.0.0.1:9000", "n1", "must be an id of controllerDLegerPeers: n0"),
        ("controller", "n0-10.0.0.1:90000", "n0", "port 90000 of n0 must be from 1 to 65535"),
        ("controller", "10.0.0.1:9000", "n0", "ID-HOST:PORT"),
        ("nameserver", "", "n0", "needs controllerDLegerPeers"),
    ],
)
def test_controllers_that_make_no_group_are_named(kind: str, peers: str, self_id: str, wanted: str):
    inside = ["enableControllerInNamesrv=true"] if kind == "nameserver" else []
    assert wanted in error(kind, f"controllerDLegerPeers={peers}", f"controllerDLegerSelfId={self_id}", *inside)


def test_a_controller_listens_at_the_port_of_its_own_peer():
    """`ControllerStartup.createControllerManager`."""
    peers = "n0-10.0.0.1:9000;n1-[2001:db8::1]:9001;"
    made = config.load([], [f"controllerDLegerPeers={peers}", "controllerDLegerSelfId=n1"], "controller", host=HOST)
    assert made.controller.listen_port == 9001
    assert made.controller.peers[1] == ("n1", "2001:db8::1", 9001)
    assert config.load([], [], "controller", host=HOST).controller.listen_port == 19876


@pytest.mark.parametrize(
    "overrides",
    [
        ["aclEnable=false", "enableDLegerCommitLog=false", "tls.server.mode=disabled"],
        ["brokerRole=SYNC_MASTER", "inSyncReplicas=2", "minInSyncReplicas=2"],
        ["brokerRole=ASYNC_MASTER", "inSyncReplicas=2"],
        ["brokerRole=SLAVE", "brokerId=1"],
        ["drillDefects=ack-before-sync", "drillFaultsEnable=true"],
        ["fetchNamesrvAddrByAddressServer=true", "namesrvAddr=a:1"],
        ["readOnlyCommitLogStorePaths=", "messageStorePlugIn="],
    ],
)
def test_the_harmless_values_of_those_keys_are_taken(overrides: list[str]):
    broker(*overrides)


@pytest.mark.parametrize(
    ("overrides", "part"),
    [
        (["listenPort=2"], "from 3 to 65534"),
        (["listenPort=65535"], "from 3 to 65534"),
        (["listenPort=10911", "haListenPort=10909"], "already listens there"),
        (["maxMessageSize=20000000"], "below frameSizeMax"),
        (["outboxLowWater=5000000"], "must not decrease"),
        (["storePathCommitLog=/a,/b"], "one folder"),
        (["noEqualsSign"], "must be key=value"),
        (["=5"], "must be key=value"),
        (["plugin.box=5"], "must be plugin.NAME.KEY"),
    ],
)
def test_values_that_are_wrong_together_or_in_form(overrides: list[str], part: str):
    assert part in error("broker", *overrides)


def test_files_that_cannot_be_read(tmp_path: Path):
    assert (
        error("broker", paths=(str(tmp_path / "none.conf"),))
        == f"config: cannot read {tmp_path}/none.conf: No such file or directory"
    )
    assert "cannot read" in error("broker", paths=(str(tmp_path),))
    assert "is not valid TOML" in error("broker", paths=(write(tmp_path, "x.toml", "a = = 1"),))
    assert "is not a valid property file" in error("broker", paths=(write(tmp_path, "x.conf", "a = \\u1"),))
    (tmp_path / "large.conf").write_bytes(b"#" * (2 << 20))
    assert "too large" in error("broker", paths=(str(tmp_path / "large.conf"),))


def test_a_file_in_latin_1_is_read_as_java_does(tmp_path: Path):
    (tmp_path / "b.conf").write_bytes(b"# \xe9\nbrokerName = caf\xe9")
    assert config.load([tmp_path / "b.conf"], [], "broker", host=HOST).identity.broker_name == "café"


# --- changes at run time


def test_live_keys_change_in_a_new_config_and_the_old_one_stays():
    node = broker("flushDiskType=SYNC_FLUSH")
    changed = node.updated({"brokerPermission": "4", "flushIntervalCommitLog": "250"})
    assert changed.topics.broker_permission == 4
    assert changed.flush.flush_interval_commit_log_ms == 250
    assert changed.flush.flush_disk_type is FlushDiskType.SYNC_FLUSH
    assert changed.values["brokerPermission"] == 4
    assert changed.network == node.network
    assert node.topics.broker_permission == 6


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"storePathRootDir": "/etc"}, "storePathRootDir cannot be changed while the node runs"),
        ({"namesrvAddr": "evil:1"}, "namesrvAddr cannot be changed while the node runs"),
        ({"sendMessageThreadPoolNums": "4"}, "sendMessageThreadPoolNums cannot be changed while the node runs"),
        ({"aclEnable": "true"}, "aclEnable cannot be changed while the node runs"),
        ({"plugin.box.size": "1"}, "unknown key 'plugin.box.size'"),
        ({"brokerPermision": "4"}, "did you mean brokerPermission?"),
        ({"kvConfigPath": "/etc/passwd"}, "is a key of a name server"),
        ({"brokerPermission": "9"}, "must be a whole number from 0 to 7"),
        ({"maxMessageSize": "16777216"}, "below frameSizeMax"),
    ],
)
def test_one_bad_change_and_nothing_is_applied(changes: dict[str, str], part: str):
    node = broker()
    before = node.values["fileReservedTime"]
    with pytest.raises(ConfigError) as caught:
        node.updated({"fileReservedTime": "5", **changes})
    assert part in str(caught.value)
    assert node.values["fileReservedTime"] == before
    assert node.retention.file_reserved_time_hours == before


def test_a_name_server_changes_its_own_live_keys():
    node = config.from_values("nameserver", {"listenPort": 0})
    assert node.updated({"enableTopicList": "false"}).nameserver.enable_topic_list is False
    with pytest.raises(ConfigError, match="kvConfigPath cannot be changed"):
        node.updated({"kvConfigPath": "/etc/x"})


def test_from_values_reads_nothing_from_the_machine(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NAMESRV_ADDR", "elsewhere:1")
    node = config.from_values("broker", {"storePathRootDir": "/s", "autoCreateTopicEnable": False})
    assert node.network.namesrv_addrs == ()
    assert node.paths.store_path_root_dir == "/s"
    assert node.topics.auto_create_topic_enable is False


def test_load_takes_its_defaults_from_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NAMESRV_ADDR", "ns:9876")
    node = config.load([], [], "broker")
    assert node.paths.store_path_root_dir == f"{tmp_path}/store"
    assert node.network.namesrv_addrs == ("ns:9876",)
    assert node.identity.broker_name
    assert node.network.broker_ip1.count(".") == 3


def test_in_controller_mode_role_and_id_have_no_effect():
    node = broker("enableControllerMode=true", "controllerAddr=h:1;h:2", "brokerRole=SYNC_MASTER", "brokerId=0")
    assert node.election.controllers == ("h:1", "h:2")
    assert (node.identity.broker_role, node.identity.broker_id) == (BrokerRole.SLAVE, 1)
    elected = node.in_role(BrokerRole.SYNC_MASTER, 0).updated({"minInSyncReplicas": "1"})
    assert (elected.identity.broker_role, elected.identity.broker_id) == (BrokerRole.SYNC_MASTER, 0)
