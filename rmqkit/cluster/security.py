"""What `cluster up --preset secure` adds to a cluster: certificates, users, and settings.

    <cluster>/tls/
        ca.pem, ca.key          the cluster's own authority; the key has mode 0600
        node.pem, node.key      one certificate for all nodes, for the addresses that they listen on
        hosts                   those addresses, one per line
        tls.properties          what a client needs, in Java's format; our client reads it as well

All nodes are enforcing: they serve TLS only, name servers, HA and metrics included, and they dial
each other with TLS and check the certificate. The files stay until `cluster down --purge`. A
certificate is issued again if the cluster's addresses have changed.

Access control is on, on all nodes; `users.py` has the users.
"""

import socket
from datetime import UTC, datetime
from pathlib import Path

from rmqkit.cluster import certificates, users
from rmqkit.cluster.layout.description import Description, Setting
from rmqkit.cluster.layout.home import TLS, write_whole

CLIENT_FILE = "tls.properties"
LOOPBACK = ("localhost", "127.0.0.1")
#: files without which the certificate is issued again
NODE_FILES = ("ca.pem", "node.pem", "node.key")


def client_file(folder: Path) -> str:
    """Return the path of the TLS settings for clients of a cluster, "" if it has none."""
    path = folder / TLS / CLIENT_FILE
    return str(path) if path.is_file() else ""


def prepare(folder: Path, description: Description) -> dict[str, Setting]:
    """Make what a secure cluster lacks. Return the settings that all of its nodes get.

    Raises ClusterError if certificates must be made and the library is missing.
    """
    own = folder / TLS
    hosts = hosts_of(description)
    if _hosts_covered(own) != hosts or not all((own / name).is_file() for name in NODE_FILES):
        certificates.check_library()
        own.mkdir(exist_ok=True)
        _issue(own, hosts)
    write_client_file(own)
    return {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": str(own / "node.pem"),
        "tls.server.keyPath": str(own / "node.key"),
        "tls.client.trustCertPath": str(own / "ca.pem"),
        **users.prepare(folder),
    }


def hosts_of(description: Description) -> list[str]:
    """Return the names and addresses by which clients may reach the nodes, sorted."""
    found = {*LOOPBACK, socket.gethostname(), description.advertised, description.advertise, description.bind}
    return sorted(found - {"", "0.0.0.0", "::"})


def write_client_file(own: Path) -> None:
    """Write the settings of clients, for Java (`-Dtls.config.file`) and for RMQKIT_TLS."""
    text = (
        "# for Java: -Dtls.enable=true -Dtls.config.file=<this file>; for rmqkit: RMQKIT_TLS=<this file>\n"
        "tls.test.mode.enable=false\n"
        "tls.client.authServer=true\n"
        f"tls.client.trustCertPath={own / 'ca.pem'}\n"
    )
    write_whole(own / CLIENT_FILE, text)


def _hosts_covered(own: Path) -> list[str]:
    try:
        return (own / "hosts").read_text(encoding="utf-8").split()
    except OSError:
        return []


def _issue(own: Path, hosts: list[str]) -> None:
    """Issue the certificate of the nodes, and make the authority if there is none."""
    now = datetime.now(UTC)
    if (own / "ca.pem").is_file() and (own / "ca.key").is_file():
        authority = certificates.read(own / "ca.pem", own / "ca.key")
    else:
        authority = certificates.make_authority(f"rmqkit cluster {own.parent.name}", now)
        authority.write(own / "ca.pem", own / "ca.key")
    certificates.issue(authority, f"nodes of cluster {own.parent.name}", hosts, now).write(
        own / "node.pem", own / "node.key"
    )
    write_whole(own / "hosts", "\n".join(hosts))
