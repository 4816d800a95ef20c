"""KV configuration (100-102, 219) and its file."""

import json

import pytest

from rmqkit.nameserver.names import TableLimits
from rmqkit.runtime.atomic_file import AtomicFileDamaged
from rmqkit.wire.codes import RequestCode
from tests.helpers.script import Command, ScriptDisk
from tests.nameserver.conftest import Make, NameServerScript
from tests.nameserver.peers import Admin

PATH = "/ns/kvConfig.json"


def put(admin: Admin, key: str = "k", value: str = "v", namespace: str = "n") -> Command:
    return admin.ask(RequestCode.PUT_KV_CONFIG, namespace=namespace, key=key, value=value)


def test_put_get_delete(ns: NameServerScript):
    """KVConfigManager.putKVConfig, getKVConfig, deleteKVConfig.

    The remark is that of DefaultRequestProcessor.getKVConfig.
    """
    admin = Admin(ns)
    for value in ("one", "two"):
        assert put(admin, value=value).code == 0
        answer = admin.ask(RequestCode.GET_KV_CONFIG, namespace="n", key="k")
        assert (answer.code, answer.ext) == (0, {"value": value})
    assert admin.ask(RequestCode.DELETE_KV_CONFIG, namespace="n", key="k").code == 0
    answer = admin.ask(RequestCode.GET_KV_CONFIG, namespace="n", key="k")
    assert (answer.code, answer.remark) == (22, "No config item, Namespace: n Key: k")


def test_list_of_a_namespace(ns: NameServerScript):
    """KVConfigManager.getKVListByNamespace: a namespace stays after its last key is deleted."""
    admin = Admin(ns)
    answer = admin.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="n")
    assert (answer.code, answer.remark) == (22, "No config item, Namespace: n")
    put(admin, "a", "1")
    put(admin, "b", "2")
    assert admin.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="n").json == {"table": {"a": "1", "b": "2"}}
    for key in ("a", "b"):
        admin.ask(RequestCode.DELETE_KV_CONFIG, namespace="n", key=key)
    assert admin.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="n").body == b'{"table":{}}'


def test_deleting_what_is_not_there_is_no_error(ns: NameServerScript):
    assert Admin(ns).ask(RequestCode.DELETE_KV_CONFIG, namespace="n", key="k").code == 0


def test_the_file_survives_a_restart(make_ns: Make):
    """KVConfigManager.persist, load; the format of KVConfigSerializeWrapper.toJson."""
    ns = make_ns()
    put(Admin(ns), "k", 'ü "quoted"\n', "n")
    assert bytes(ns.disk.files[PATH]).decode() == '{"configTable":{"n":{"k":"ü \\"quoted\\"\\n"}}}'
    again = make_ns(disk=ns.disk)
    answer = Admin(again).ask(RequestCode.GET_KV_CONFIG, namespace="n", key="k")
    assert answer.ext == {"value": 'ü "quoted"\n'}
    put(Admin(again), "other")
    assert set(json.loads(ns.disk.files[PATH])["configTable"]["n"]) == {"k", "other"}


def test_a_change_is_answered_when_it_is_on_disk(ns: NameServerScript):
    admin = Admin(ns)
    ns.disk.held = True
    opaque = admin.client.tell(RequestCode.PUT_KV_CONFIG, {"namespace": "n", "key": "k", "value": "v"})
    later = admin.client.tell(RequestCode.PUT_KV_CONFIG, {"namespace": "n", "key": "k", "value": "w"})
    assert admin.client.take() == []
    ns.node.stop()
    ns.turn()
    assert not ns.node.stopped
    ns.disk.held = False
    ns.finish_disk()
    assert [each.opaque for each in admin.client.take()] == [opaque, later]
    assert json.loads(ns.disk.files[PATH]) == {"configTable": {"n": {"k": "w"}}}
    assert ns.node.stopped


def test_a_disk_that_fails_is_told(ns: NameServerScript):
    admin = Admin(ns)
    ns.disk.error = OSError(28, "No space left on device")
    answer = put(admin)
    assert answer.code == 1
    assert "No space left on device" in str(answer.remark)
    ns.disk.error = None
    assert put(admin, "other").code == 0
    assert set(json.loads(ns.disk.files[PATH])["configTable"]["n"]) == {"k", "other"}


def test_the_backup_is_read_when_the_file_is_damaged(make_ns: Make):
    """ConfigManager.load, MixAll.file2String: the `.bak` file replaces a damaged file."""
    disk = ScriptDisk()
    disk.files = {PATH: bytearray(b"{dam"), f"{PATH}.bak": bytearray(b'{"configTable":{"n":{"k":"v"}}}')}
    assert Admin(make_ns(disk=disk)).ask(RequestCode.GET_KV_CONFIG, namespace="n", key="k").ext == {"value": "v"}


@pytest.mark.parametrize("damage", [b"{dam", b'{"configTable":7}', b'{"configTable":{"n":{"k":{}}}}', b"[]"])
def test_damage_without_a_backup_stops_the_start(make_ns: Make, damage: bytes):
    disk = ScriptDisk()
    disk.files = {PATH: bytearray(damage)}
    with pytest.raises(AtomicFileDamaged, match=r"kvConfig\.json cannot be read"):
        make_ns(disk=disk)
    assert disk.files == {PATH: bytearray(damage)}


@pytest.mark.parametrize("content", [b"{}", b'{"configTable":null}', b'{"configTable":{"n":{"k":null}}}'])
def test_empty_tables_of_java_are_read(make_ns: Make, content: bytes):
    disk = ScriptDisk()
    disk.files = {PATH: bytearray(content)}
    assert Admin(make_ns(disk=disk)).ask(RequestCode.GET_KV_CONFIG, namespace="n", key="k").code == 22


@pytest.mark.parametrize(
    ("limits", "refused"),
    [
        (TableLimits(kv_entries_max=1), {"key": "other"}),
        (TableLimits(kv_namespaces_max=1), {"namespace": "other"}),
        (TableLimits(kv_size_max=10), {"value": "123456789"}),
        (TableLimits(), {"key": ""}),
        (TableLimits(), {"key": "x" * 256}),
        (TableLimits(), {"namespace": "a\nb"}),
    ],
)
def test_limits(make_ns: Make, limits: TableLimits, refused: dict[str, str]):
    ns = make_ns(limits=limits)
    admin = Admin(ns)
    assert put(admin).code == 0
    before = bytes(ns.disk.files[PATH])
    answer = put(admin, **refused)
    assert answer.code == 1
    assert answer.remark
    assert bytes(ns.disk.files[PATH]) == before
    assert put(admin, value="12345678").code == 0
