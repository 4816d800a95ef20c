"""Registers the built-in logs of a controller through the same hook as external plug-ins."""

from collections.abc import Mapping

from rmqkit.controller.raft.controller_log import make_raft
from rmqkit.controller.single_log import make_single
from rmqkit.hookspecs import Factory, hookimpl


@hookimpl
def rmqkit_controller_logs() -> Mapping[str, Factory]:
    return {"single": make_single, "raft": make_raft}
