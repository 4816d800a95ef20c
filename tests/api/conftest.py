"""Clusters of processes on loopback."""

from rmqkit.testing import factories

#: Two broker groups, so that one may fail. Short delay levels: failed messages return soon.
pair = factories.cluster(groups=2, replicas=1, nameservers=1, settings={"messageDelayLevel": " ".join(["1s"] * 18)})
own = factories.clean("pair")
two_name_servers = factories.cluster(groups=1, replicas=1, nameservers=2, scope="function")
