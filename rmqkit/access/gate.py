"""AccessGate: checks who sent a request, before its header is decoded for its handler.

`Remoting` calls `admit` with the extFields as they arrived, because the signature covers all of
them. It then decodes the header for the handler from these same fields, so both see one value, and
calls the rule of the request code (`Principal.check`).

Every request is checked. The gate remembers nothing about connections.

Who is known:

- the inner credentials of the settings: the cluster's own nodes. They win over a user of the same
  name in a table.
- the enabled users of the tables. A broker has one table, a name server one for each broker group;
  there a user is known whose signature is right by one of them.

The remarks are Apache's. Source: `auth/.../provider/DefaultAuthenticationProvider.java`,
`auth/.../chain/DefaultAuthenticationHandler.java`.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from rmqkit.access.audit import Audit
from rmqkit.access.caller import Known, Principal
from rmqkit.access.model import read_source
from rmqkit.access.rules import any_user
from rmqkit.access.signature import ACCESS_KEY, SIGNATURE, Key
from rmqkit.access.table import Accounts
from rmqkit.runtime.calls import HandlerRow, Refused
from rmqkit.runtime.connection import Connection
from rmqkit.wire.codes import ResponseCode

NO_USER = "username cannot be null."
BAD_SIGNATURE = "check signature failed."
#: characters; longer access keys are unknown anyway
NAME_SHOWN_MAX = 80


class AccessGate:
    """The access control of one node."""

    def __init__(
        self,
        tables: Callable[[], Sequence[Accounts]],
        audit: Audit,
        *,
        has_rules: bool,
        inner: tuple[str, str] | None = None,
        hint_hosts: Callable[[], Sequence[str]] = tuple,
        unsigned_codes: Set[int] = frozenset(),
        free_codes: Set[int] = frozenset(),
    ) -> None:
        """Check against the tables that `tables` returns.

        `has_rules` is whether authorization is on. `inner` is the access key and the secret of the
        cluster's nodes. `hint_hosts` returns the hosts of name servers and controllers.
        `unsigned_codes` need no signature (authenticationWhitelist), `free_codes` no right
        (authorizationWhitelist).
        """
        self._tables = tables
        self.audit = audit
        self.has_rules = has_rules
        #: rises with each change of a table, so that parked calls are checked again
        self.generation = 0
        self._inner_name = inner[0] if inner else ""
        self._inner_key = Key(inner[1]) if inner else None
        self._hint_hosts = hint_hosts
        self._unsigned_codes = unsigned_codes
        self._free_codes = free_codes

    def changed(self) -> None:
        """Note that a table has changed."""
        self.generation += 1

    def accounts_of(self, name: str) -> list[Known]:
        """Return the enabled accounts of a user."""
        found = []
        for table in self._tables():
            account = table.accounts.get(name)
            if account is not None and account.user.is_enabled:
                found.append((table, account))
        return found

    def why_unknown(self, name: str) -> str:
        """Return why a user has no enabled account."""
        state = "disabled" if any(name in table.accounts for table in self._tables()) else "not found"
        return f"User:{name[:NAME_SHOWN_MAX]} is {state}."

    def admit(self, conn: Connection, row: HandlerRow, fields: Mapping[str, Any], body: bytes) -> Principal:
        """Return who signed a request. Raises Refused if that is no known user.

        The refusal closes the connection if the address has sent too many wrong signatures.
        """
        name = fields.get(ACCESS_KEY)
        if not isinstance(name, str) or not name:
            if row.access.is_hint and SIGNATURE not in fields and conn.peer.host in self._hint_hosts():
                return self._caller("", (), conn, row, is_inner=True)
            if row.code in self._unsigned_codes and SIGNATURE not in fields:
                return self._caller("", (), conn, row, is_inner=False)
            raise self._failed("", conn, row, "no-user", NO_USER)
        if self._inner_key is not None and name == self._inner_name:
            if not self._inner_key.verify(fields, body):
                raise self._failed(name, conn, row, "signature", BAD_SIGNATURE)
            return self._caller(name, (), conn, row, is_inner=True)
        known = self.accounts_of(name)
        if not known:
            raise self._failed(name, conn, row, "user", self.why_unknown(name))
        if len(known) == 1:
            verified = known if known[0][1].key.verify(fields, body) else []
        else:
            verified = [each for each in known if each[1].key.verify(fields, body)]
        if not verified:
            raise self._failed(name, conn, row, "signature", BAD_SIGNATURE)
        return self._caller(name, verified, conn, row, is_inner=any(each.user.is_super for _, each in verified))

    def _caller(
        self, name: str, accounts: Sequence[Known], conn: Connection, row: HandlerRow, *, is_inner: bool
    ) -> Principal:
        peer = conn.peer
        rule = any_user if row.code in self._free_codes else row.access
        return Principal(self, name, accounts, peer, read_source(peer.host), rule, row.name, is_inner=is_inner)

    def _failed(self, name: str, conn: Connection, row: HandlerRow, reason: str, remark: str) -> Refused:
        closes = self.audit.failed(name, conn.peer, row.name, reason, remark)
        return Refused(ResponseCode.NO_PERMISSION, remark, closes=closes)
