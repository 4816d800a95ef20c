"""The meanings of request and response codes: `rmqkit explain CODE`.

The texts are in `explain/codes.toml`. Which rmqkit nodes answer a request follows from their
handlers. The tables are read on first use, because most commands do not need them.
"""

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from rmqkit.wire.codes import OwnRequestCode, RequestCode, ResponseCode


class Meaning(NamedTuple):
    meaning: str
    do: str


@cache
def responses() -> dict[ResponseCode, Meaning]:
    """Return the meaning of each response code."""
    return {ResponseCode[name]: Meaning(**row) for name, row in load("codes.toml")["response"].items()}


@cache
def requests() -> dict[RequestCode | OwnRequestCode, str]:
    """Return the task of each request: upstream's, then rmqkit's own."""
    table = load("codes.toml")
    own = {OwnRequestCode[name]: asks for name, asks in table["own"].items()}
    return {RequestCode[name]: asks for name, asks in table["request"].items()} | own


def load(name: str) -> dict[str, Any]:
    """Return a TOML table of the folder `explain`. Line breaks in its texts count as spaces."""
    text = files("rmqkit.cli.explain").joinpath(name).read_text(encoding="utf-8")
    return {key: _unwrapped(value) for key, value in tomllib.loads(text).items()}


def _unwrapped(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _unwrapped(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_unwrapped(each) for each in value]
    return " ".join(value.split())
