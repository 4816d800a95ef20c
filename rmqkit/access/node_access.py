"""NodeAccess: what the access control of a broker, a name server and a controller have in common.

A node signs its requests with the inner credentials also if authentication is off here, since its
peers may need them.
"""

from collections.abc import Callable, Sequence

from rmqkit.access.addresses import AddressGate
from rmqkit.access.audit import Audit
from rmqkit.access.gate import AccessGate
from rmqkit.access.model import AclUser, UserType
from rmqkit.access.signature import Credentials
from rmqkit.access.table import Account, Accounts
from rmqkit.config import AccessSettings
from rmqkit.runtime.ports import Ports
from rmqkit.runtime.remoting import Remoting


class NodeAccess:
    """The audit of one node, and the gates of its ports."""

    def __init__(self, ports: Ports, settings: AccessSettings, remoting: Remoting) -> None:
        self._settings = settings
        self._remoting = remoting
        self.audit = Audit(ports.log, ports.clock, settings.failures_max)
        #: decides about the metrics port, by address
        self.metrics = AddressGate(
            "metrics", "metricsSourceAddresses", settings.metrics_addresses, self.audit, is_on=settings.is_on
        )
        if settings.inner is not None:
            remoting.sign = Credentials(*settings.inner).sign

    def check_requests(
        self, tables: Callable[[], Sequence[Accounts]], hint_hosts: Callable[[], Sequence[str]] = tuple
    ) -> AccessGate:
        """Let a gate check each request from now on; return it. Arguments: see `AccessGate`."""
        gate = self._remoting.gate = AccessGate(
            tables,
            self.audit,
            has_rules=self._settings.has_rules,
            inner=self._settings.inner,
            hint_hosts=hint_hosts,
            unsigned_codes=self._settings.unsigned_codes,
            free_codes=self._settings.free_codes,
        )
        return gate

    def initial_accounts(self) -> Accounts:
        """Return the account of `initAuthenticationUser`, a super user in every cluster."""
        own, user = Accounts(""), self._settings.init_user
        if user is not None:
            own.accounts[user.name] = Account(AclUser(*user, UserType.SUPER))
        return own
