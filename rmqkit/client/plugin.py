"""The client's built-in plug-in. It registers fault policies and allocators as external plug-ins
do.
"""

from collections.abc import Mapping

from rmqkit.client.allocators import ALLOCATORS
from rmqkit.client.fault_policy import FAULT_POLICIES
from rmqkit.hookspecs import Factory, hookimpl


@hookimpl
def rmqkit_fault_policies() -> Mapping[str, Factory]:
    return FAULT_POLICIES


@hookimpl
def rmqkit_allocators() -> Mapping[str, Factory]:
    return ALLOCATORS
