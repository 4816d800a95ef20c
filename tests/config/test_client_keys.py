"""Where a client finds its keys, and that no text shows a secret."""

from pathlib import Path

import pytest

from rmqkit.client_keys import (
    ACCESS_FILE_VARIABLE,
    ACCESS_KEY_VARIABLE,
    SECRET_KEY_VARIABLE,
    SECURITY_TOKEN_VARIABLE,
    ClientKeys,
    choose_keys,
    keys_of_file,
    tools_file,
)
from rmqkit.errors import ConfigError

SECRET = "a-very-secret-text"


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE, SECURITY_TOKEN_VARIABLE, ACCESS_FILE_VARIABLE):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "conf" / "tools.yml"
    path.parent.mkdir()
    path.write_text(f'# for mqadmin\naccessKey: rocketmq2 # the user\nsecretKey: "{SECRET}"\n')
    return path


def test_without_anything_requests_are_not_signed():
    assert choose_keys() is None


def test_arguments_come_before_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(ACCESS_KEY_VARIABLE, "env")
    monkeypatch.setenv(SECRET_KEY_VARIABLE, SECRET)
    assert choose_keys() == ClientKeys("env", SECRET)
    monkeypatch.setenv(SECURITY_TOKEN_VARIABLE, "sts")
    assert choose_keys() == ClientKeys("env", SECRET, "sts")
    assert choose_keys("own", "s", "t") == ClientKeys("own", "s", "t")


def test_a_file_has_the_form_of_tools_yml(file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(ACCESS_FILE_VARIABLE, str(file))
    assert choose_keys() == keys_of_file(file) == ClientKeys("rocketmq2", SECRET)
    file.write_text("accessKey: 'a # b'\r\nsecretKey: 12345678\r\n")
    assert keys_of_file(file) == ClientKeys("a # b", "12345678")


def test_mqadmins_file_counts_if_it_has_keys(file: Path):
    home = {"ROCKETMQ_HOME": str(file.parent.parent)}
    assert tools_file(home) == str(file)
    assert tools_file({}) == ""
    file.write_text("accessKey:\nsecretKey:\n")
    assert tools_file(home) == ""
    file.unlink()
    assert tools_file(home) == ""


def test_half_of_the_keys_is_an_error(monkeypatch: pytest.MonkeyPatch, file: Path):
    with pytest.raises(ConfigError, match="secret_key is missing"):
        choose_keys("user")
    with pytest.raises(ConfigError, match="access_key is missing") as caught:
        choose_keys(None, SECRET)
    assert SECRET not in str(caught.value)
    file.write_text(f"secretKey: {SECRET}\n")
    with pytest.raises(ConfigError, match="needs a line `accessKey: NAME`") as caught:
        keys_of_file(file)
    assert SECRET not in str(caught.value)
    monkeypatch.setenv(ACCESS_FILE_VARIABLE, "/nowhere")
    with pytest.raises(ConfigError, match="cannot read /nowhere"):
        choose_keys()


def test_no_text_shows_the_secret():
    keys = ClientKeys("user", SECRET, "token-text")
    for text in (repr(keys), str(keys), f"{keys}", f"{[keys]}"):
        assert "user" in text
        assert SECRET not in text
        assert "token-text" not in text
