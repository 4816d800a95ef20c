"""Words that the shell offers on TAB. Cheap: files are read, nothing is started, a name server has half a second.

Whatever goes wrong, there is nothing to offer: a completion never prints an error.
"""

from __future__ import annotations

TOPIC_TIMEOUT_S = 0.5


def cluster_names(incomplete: str) -> list[str]:
    from rmqkit.cluster.home import cluster_names as names
    from rmqkit.cluster.home import home_folder

    return [name for name in names(home_folder()) if name.startswith(incomplete)]


def clusters_and_selectors(incomplete: str) -> list[str]:
    """Selectors of the cluster `default`, and names of clusters."""
    from rmqkit.cluster import Cluster
    from rmqkit.cluster.selectors import possible

    found: list[str] = []
    try:
        found = possible(Cluster().description.nodes())
    except Exception:
        pass
    return [word for word in [*found, *cluster_names("")] if word.startswith(incomplete)]


def setting_keys(incomplete: str) -> list[str]:
    from rmqkit.settings.keys import ROWS

    keys = {key: None for rows in ROWS.values() for key, row in rows.items() if row.status == "works"}
    return [f"{key}=" for key in keys if key.startswith(incomplete)]


def bare_setting_keys(incomplete: str) -> list[str]:
    return [key.removesuffix("=") for key in setting_keys(incomplete)]


def topics(incomplete: str) -> list[str]:
    """Topics of the cluster that commands without --namesrv talk to; those of the system are left out."""
    from rmqkit.cli.finding import find_namesrv
    from rmqkit.cluster.readiness import topics as known_topics
    from rmqkit.runtime.connection import Address

    try:
        addresses = [Address.parse(text) for text in find_namesrv(None).split(";")]
        known = known_topics(addresses, TOPIC_TIMEOUT_S)
    except Exception:
        return []
    return [name for name in known if name.startswith(incomplete) and not name.startswith(("%", "RMQ_SYS_", "SCHEDULE_"))]
