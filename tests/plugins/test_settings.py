"""A plug-in's own settings: text in a configuration, a typed Struct for the plug-in."""

import re
from typing import Annotated

import msgspec
import pytest

from rmqkit import config
from rmqkit.errors import ConfigError
from rmqkit.plugins import read_settings


class Box(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    size_max: Annotated[int, msgspec.Meta(ge=1)] = 10
    deep: bool = False
    label: str = ""


def test_text_is_read_as_the_schema_says(tmp_path):
    file = tmp_path / "node.toml"
    file.write_text('plugins = "box"\n[plugin.box]\nsizeMax = 3\ndeep = true\nlabel = "a b"\n')
    node = config.load([file], [])
    assert read_settings("box", node.plugins.values["box"], Box) == Box(size_max=3, deep=True, label="a b")
    assert read_settings("box", {}, Box) == Box()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sizeMx": "1"}, "config: unknown key 'plugin.box.sizeMx'; did you mean sizeMax?"),
        ({"zzz": "1"}, "config: unknown key 'plugin.box.zzz'; there are: sizeMax, deep, label"),
        ({"sizeMax": "many"}, "config: plugin.box.sizeMax = many: Expected `int`"),
        ({"sizeMax": "0"}, "config: plugin.box.sizeMax = 0: Expected `int` >= 1"),
        ({"deep": "perhaps"}, "config: plugin.box.deep = perhaps: Expected `bool`"),
    ],
)
def test_invalid_settings_are_an_error_of_one_line(settings, words):
    with pytest.raises(ConfigError, match=f"^{re.escape(words)}"):
        read_settings("box", settings, Box)
