"""What admits a connection or request on each listener of a node, while authentication is on.

A node whose listener is not in the table does not start, so a new kind of listener needs a decision
here.
"""

from collections.abc import Iterable, Mapping

from rmqkit.errors import ConfigError

#: tag of the listener -> what admits a peer there
LISTENERS: Mapping[str, str] = {
    "remoting": "each request is signed, and the rule of its code allows it (`gate`)",
    "vip": "as on the port P",
    "ha": "a signed request (906) has claimed the connection, or haSlaveAddresses lists its address",
    "metrics": "metricsSourceAddresses lists the address; it can only be read",
    "drill": "a UNIX socket with mode 0600: the node's own user, and only with drillFaultsEnable",
}


def check_listeners(tags: Iterable[str]) -> None:
    """Raise ConfigError if nothing says who may connect to a listener."""
    unknown = sorted(set(tags) - LISTENERS.keys())
    if unknown:
        names = ", ".join(unknown)
        raise ConfigError(f"config: listener {names} has no rule of access control, so the node does not start")
