from rmqkit.wire.codes import VERSION, Language, MessageSysFlag, PermName, PullSysFlag, RequestCode, ResponseCode, Version
from tests.wire.apache_facts import REQUEST_CODES, RESPONSE_CODES


def pairs(text: str) -> dict[str, int]:
    words = text.split()
    return dict(zip(words[::2], map(int, words[1::2]), strict=True))


def test_request_codes_are_those_of_java_request_code() -> None:
    assert {code.name: code.value for code in RequestCode} == pairs(REQUEST_CODES)


def test_response_codes_are_those_of_java_response_code() -> None:
    assert {code.name: code.value for code in ResponseCode} == pairs(RESPONSE_CODES)


def test_languages_are_those_of_java_language_code() -> None:
    names = " ".join(language.name for language in sorted(Language))
    assert names == "JAVA CPP DOTNET PYTHON DELPHI ERLANG RUBY OTHER HTTP GO PHP OMS RUST NODE_JS"
    assert [language.value for language in sorted(Language)] == list(range(14))


def test_versions_are_ordinals_of_java_mq_version() -> None:
    assert {v.name: v.value for v in Version} == {
        "V3_0_7_SNAPSHOT": 28,
        "V3_0_11": 37,
        "V3_1_8_SNAPSHOT": 62,
        "V3_4_9": 121,
        "V4_0_0": 213,
        "V4_1_0_SNAPSHOT": 232,
        "V4_5_2": 317,
        "V4_6_0": 333,
        "V4_8_0": 373,
        "V4_9_0": 393,
        "V4_9_3": 399,
        "V4_9_4": 401,
        "V4_9_7": 407,
        "V5_0_0": 413,
        "V5_1_0": 433,
        "V5_3_0": 473,
        "V5_3_1": 475,
        "V5_3_2": 477,
        "V5_3_3": 479,
        "V5_4_0": 493,
        "V5_5_0": 513,
    }
    assert VERSION == Version.V5_3_3


def test_flag_bits() -> None:
    assert (PermName.PERM_READ, PermName.PERM_WRITE, PermName.PERM_INHERIT, PermName.PERM_PRIORITY) == (4, 2, 1, 8)
    assert (MessageSysFlag.TRANSACTION_PREPARED, MessageSysFlag.TRANSACTION_COMMIT) == (4, 8)
    assert MessageSysFlag.TRANSACTION_ROLLBACK == MessageSysFlag.TRANSACTION_MASK == 12
    assert (MessageSysFlag.COMPRESSED, MessageSysFlag.BORN_HOST_V6, MessageSysFlag.STORE_HOST_V6) == (1, 16, 32)
    assert (MessageSysFlag.NEED_UNWRAP, MessageSysFlag.INNER_BATCH) == (64, 128)
    assert MessageSysFlag.COMPRESSION_LZ4 | MessageSysFlag.COMPRESSION_ZSTD == MessageSysFlag.COMPRESSION_ZLIB == 0x300
    assert (PullSysFlag.COMMIT_OFFSET, PullSysFlag.SUSPEND, PullSysFlag.SUBSCRIPTION) == (1, 2, 4)
    assert (PullSysFlag.CLASS_FILTER, PullSysFlag.LITE_PULL) == (8, 16)
