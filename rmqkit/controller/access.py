"""ControllerAccess: access control of a controller.

A controller knows two callers: the nodes of the cluster, which sign with the inner credentials
(`innerClientAuthenticationCredentials`), and the super user of `initAuthenticationUser`. The tables
of users at the brokers are not copied here.
"""

from rmqkit.access.addresses import metrics_gate
from rmqkit.access.audit import Audit
from rmqkit.access.gate import AccessGate
from rmqkit.access.model import AclUser, UserType
from rmqkit.access.signature import Credentials
from rmqkit.access.table import Account, Accounts
from rmqkit.config import NodeConfig
from rmqkit.runtime.ports import Ports
from rmqkit.runtime.remoting import Remoting


class ControllerAccess:
    """The callers that a controller admits. Without authentication it admits all."""

    def __init__(self, ports: Ports, config: NodeConfig, remoting: Remoting) -> None:
        settings = config.access
        self.audit = Audit(ports.log, ports.clock, settings.failures_max)
        self.metrics = metrics_gate(settings.metrics_addresses, self.audit, is_on=settings.is_on)
        if settings.inner is not None:
            remoting.sign = Credentials(*settings.inner).sign
        if not settings.is_on:
            return
        own = Accounts("")
        if settings.init_user is not None:
            own.accounts[settings.init_user.name] = Account(AclUser(*settings.init_user, UserType.SUPER))
        remoting.gate = AccessGate(
            lambda: [own],
            self.audit,
            has_rules=settings.has_rules,
            inner=settings.inner,
            unsigned_codes=settings.unsigned_codes,
            free_codes=settings.free_codes,
        )
