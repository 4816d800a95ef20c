"""Words that the shell offers on TAB.

Completion is cheap: it reads files, starts nothing, and waits at most half a second for a name
server. After any error it offers nothing; it never prints an error.
"""

import time

TOPIC_TIMEOUT_S = 0.5


def cluster_names(incomplete: str) -> list[str]:
    from rmqkit.cluster.layout.home import cluster_names as names
    from rmqkit.cluster.layout.home import home_folder

    return [name for name in names(home_folder()) if name.startswith(incomplete)]


def clusters_and_selectors(incomplete: str) -> list[str]:
    """Return the node selectors of the cluster that is meant by default, and all cluster names."""
    from rmqkit.cluster import Cluster, meant_cluster
    from rmqkit.cluster.layout.selectors import possible

    found: list[str] = []
    try:
        found = possible(Cluster(meant_cluster()).description.nodes())
    except Exception:
        pass
    return [word for word in [*found, *cluster_names("")] if word.startswith(incomplete)]


def preset_names(incomplete: str) -> list[str]:
    from rmqkit.cluster.layout.presets import PRESETS

    return [name for name in PRESETS if name.startswith(incomplete)]


def setting_keys(incomplete: str) -> list[str]:
    from rmqkit.settings.keys import declared

    keys = dict.fromkeys(each.row.key for each in declared())
    return [f"{key}=" for key in keys if key.startswith(incomplete)]


def bare_setting_keys(incomplete: str) -> list[str]:
    return [key.removesuffix("=") for key in setting_keys(incomplete)]


def topics(incomplete: str) -> list[str]:
    """Return the topics of the cluster that commands use by default, without system topics."""
    from rmqkit.cli.cluster_lookup import find_namesrv
    from rmqkit.cluster.health.readiness import topics as known_topics
    from rmqkit.runtime.connection import Address

    try:
        addresses = [Address.parse(text) for text in find_namesrv(None).split(";")]
        known = known_topics(addresses, TOPIC_TIMEOUT_S)
    except Exception:
        return []
    return [name for name in known if name.startswith(incomplete) and not name.startswith(("%", "RMQ_SYS_", "SCHEDULE_"))]


def groups(incomplete: str) -> list[str]:
    """Return the groups of the cluster that commands use by default, without system groups."""
    from rmqkit.broker.names import SYSTEM_GROUPS
    from rmqkit.cluster.health.caller import Caller
    from rmqkit.runtime.connection import Address
    from rmqkit.wire.bodies import SubscriptionGroupTable
    from rmqkit.wire.codes import RequestCode

    deadline_s = time.monotonic() + TOPIC_TIMEOUT_S
    found: set[str] = set()
    try:
        for addresses in _brokers(deadline_s).values():
            with Caller(*Address.parse(addresses[0]), deadline_s) as broker:
                answer = broker.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
            found.update(SubscriptionGroupTable.decode(answer.body).subscription_group_table)
    except Exception:
        pass
    return sorted(name for name in found if name.startswith(incomplete) and name not in SYSTEM_GROUPS)


def nodes(incomplete: str) -> list[str]:
    """Return the broker names of that cluster, and `nameserver`."""
    try:
        known = sorted(_brokers(time.monotonic() + TOPIC_TIMEOUT_S))
    except Exception:
        return []
    return [name for name in [*known, "nameserver"] if name.startswith(incomplete)]


def _brokers(deadline_s: float) -> dict[str, dict[int, str]]:
    """Return broker addresses by name and id, as the first name server lists them."""
    from rmqkit.cli.cluster_lookup import find_namesrv
    from rmqkit.cluster.health.caller import Caller
    from rmqkit.runtime.connection import Address
    from rmqkit.wire.bodies import ClusterInfo
    from rmqkit.wire.codes import RequestCode

    with Caller(*Address.parse(find_namesrv(None).split(";")[0]), deadline_s) as nameserver:
        info = ClusterInfo.decode(nameserver.ask(RequestCode.GET_BROKER_CLUSTER_INFO).body)
    return {name: dict(group.broker_addrs) for name, group in info.broker_addr_table.items()}


def nodes_and_setting_keys(incomplete: str) -> list[str]:
    return [*nodes(incomplete), *bare_setting_keys(incomplete)]


def nodes_and_settings(incomplete: str) -> list[str]:
    return [*nodes(incomplete), *setting_keys(incomplete)]


def delay_levels(incomplete: str) -> list[str]:
    """Return the names of Apache's default delay levels."""
    from rmqkit.settings.broker_sections import DEFAULT_DELAY_LEVELS

    return [name for name in DEFAULT_DELAY_LEVELS.split() if name.startswith(incomplete)]
