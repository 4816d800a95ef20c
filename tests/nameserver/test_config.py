"""Configuration at run time: codes 318 and 319."""

import pytest

from rmqkit.wire.codes import RequestCode
from tests.nameserver.conftest import Make, NameServerScript
from tests.nameserver.peers import Admin, Broker, version


def shown(admin: Admin) -> dict[str, str]:
    text = admin.ask(RequestCode.GET_NAMESRV_CONFIG).body.decode()
    lines = text.splitlines()
    assert lines == sorted(lines)
    return dict(line.split("=", 1) for line in lines)


def test_get_config(make_ns: Make):
    """DefaultRequestProcessor.getConfig, MixAll.properties2String: sorted key=value lines."""
    values = shown(Admin(make_ns(enableTopicList=False, waitSecondsForService=7)))
    assert values["enableTopicList"] == "false"
    assert values["waitSecondsForService"] == "7"
    assert values["deleteTopicWithBrokerRegistration"] == "false"
    assert values["kvConfigPath"] == "/ns/kvConfig.json"


def test_update_is_live_at_once(ns: NameServerScript):
    """Configuration.update; the recorded example sets deleteTopicWithBrokerRegistration."""
    admin, broker = Admin(ns), Broker(ns)
    broker.register("T1", "T2")
    answer = admin.ask(
        RequestCode.UPDATE_NAMESRV_CONFIG, b"deleteTopicWithBrokerRegistration=true\nenableTopicList = false\n"
    )
    assert (answer.code, answer.remark) == (0, None)
    assert shown(admin)["deleteTopicWithBrokerRegistration"] == "true"
    broker.register("T2", data_version=version(2))
    assert admin.topics() == {"T2"}
    assert admin.ask(RequestCode.GET_UNIT_TOPIC_LIST).code == 1


def test_update_is_kept_in_a_file(ns: NameServerScript):
    """Configuration.persist."""
    Admin(ns).ask(RequestCode.UPDATE_NAMESRV_CONFIG, b"enableTopicList=false")
    assert b"\nenableTopicList=false\n" in ns.disk.files["/ns/namesrv.properties"]
    ns.disk.error = OSError(30, "Read-only file system")
    answer = Admin(ns).ask(RequestCode.UPDATE_NAMESRV_CONFIG, b"enableTopicList=true")
    assert answer.code == 1
    assert "Read-only file system" in str(answer.remark)


@pytest.mark.parametrize("key", ["kvConfigPath", "configStorePath", "configBlackList", "rocketmqHome"])
def test_black_list(ns: NameServerScript, key: str):
    """DefaultRequestProcessor.validateBlackListConfigExist.

    RequestProcessorTest.testProcessRequest_UpdateConfigPath.
    """
    admin = Admin(ns)
    answer = admin.ask(RequestCode.UPDATE_NAMESRV_CONFIG, f"enableTopicList=false\n{key}=/tmp/x".encode())
    assert (answer.code, answer.remark) == (16, "Can not update config in black list.")
    assert shown(admin)["enableTopicList"] == "true"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"enableTopicLists=true", "enableTopicList"),
        (b"listenPort=1", "cannot be changed"),
        (b"enableTopicList=perhaps", "true or false"),
        (b"scanNotActiveBrokerInterval=0", "scanNotActiveBrokerInterval"),
        (b"a=\\u12", "properties text"),
        (b"\xff\xfe=1", "utf-8"),
        (b"enableTopicList=" + b"x" * 2_000_000, "at most"),
    ],
)
def test_bad_updates_change_nothing(ns: NameServerScript, text: bytes, said: str):
    admin = Admin(ns)
    before = shown(admin)
    answer = admin.ask(RequestCode.UPDATE_NAMESRV_CONFIG, b"orderMessageEnable=true\n" + text)
    assert answer.code == 1
    assert said in str(answer.remark)
    assert shown(admin) == before


def test_an_empty_update_is_no_error(ns: NameServerScript):
    assert Admin(ns).ask(RequestCode.UPDATE_NAMESRV_CONFIG).code == 0
    assert ns.disk.files == {}


def test_a_setting_without_effect_is_logged_once(make_ns: Make):
    ns = make_ns(unRegisterBrokerQueueCapacity=10)
    assert ns.log.events("warning") == ["setting-without-effect"]
