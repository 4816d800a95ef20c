"""Principal: the user who signed a request, and what it may do.

The rule of a request code asks the caller (`rules.py`), once the header is decoded. A handler asks
it where the resource is known only after a read, and to filter a list. If the call was parked, the
rule is asked again before the handler continues, with the rules of that moment.

What a name means:

- A retry topic is a resource of its group: `%RETRY%g` and pop's `%RETRY%g+t` mean Group:g. To send
  to one, or to read one, needs Sub on the group.
- The broker's internal topics (delays, half messages, timers, pop) are open to inner callers only,
  whatever a rule for `Topic:*` says. Traces, benchmarks and the topic of replies are not internal.
- An inner caller may do everything: the nodes of the cluster, which have the inner credentials,
  and super users.
"""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from rmqkit.access.decision import may_some
from rmqkit.access.model import Action, ResourceType, Source
from rmqkit.access.table import Account, Accounts
from rmqkit.runtime.calls import AccessRule, Call, Refused
from rmqkit.runtime.connection import Address
from rmqkit.wire.codes import ResponseCode
from rmqkit.wire.topic_names import RETRY_PREFIX, SEND_FORBIDDEN, SYSTEM_PREFIX

if TYPE_CHECKING:
    from rmqkit.access.gate import AccessGate

#: one table that knows the user, and the user's account there
Known = tuple[Accounts, Account]

_SUB = frozenset((Action.SUB,))
_LIST = frozenset((Action.LIST,))
_PUB = Action.PUB
#: separates group and topic in the name of a pop retry topic of version 2
_POP_SEPARATOR = "+"


def is_internal(topic: str) -> bool:
    """Whether a topic is the broker's own, which clients neither read nor write."""
    return topic in SEND_FORBIDDEN or topic.startswith(SYSTEM_PREFIX)


class Principal:
    """The sender of one request. Inner callers have no accounts."""

    __slots__ = ("_gate", "_generation", "accounts", "code_name", "is_inner", "name", "peer", "rule", "source")

    def __init__(
        self,
        gate: "AccessGate",
        name: str,
        accounts: Sequence[Known],
        peer: Address,
        source: Source | None,
        rule: AccessRule,
        code_name: str,
        *,
        is_inner: bool,
    ) -> None:
        self._gate = gate
        self._generation = gate.generation
        self.name = name
        self.accounts = accounts
        self.peer = peer
        self.source = source
        self.rule = rule
        self.code_name = code_name
        self.is_inner = is_inner

    def check(self, call: Call[Any]) -> None:
        """Raise Refused unless the request's rule allows it, by the tables of this moment."""
        if self._generation != self._gate.generation:
            self._refresh()
        refusal = self.rule.refusal(self, call)
        if refusal is not None:
            self.refuse(refusal)

    def _refresh(self) -> None:
        """Look the user up again: it may be deleted or disabled, or have other rules."""
        gate = self._gate
        self._generation = gate.generation
        if self.accounts:
            self.accounts = gate.accounts_of(self.name)
            self.is_inner = any(account.user.is_super for _, account in self.accounts)
            if not self.accounts:
                self.refuse(gate.why_unknown(self.name))

    def refuse(self, remark: str) -> None:
        """Note the refusal in the audit, and raise Refused."""
        self._gate.audit.refused(self.name, self.peer, self.code_name, "permission", remark)
        raise Refused(ResponseCode.NO_PERMISSION, remark)

    def answered(self, call: Call[Any], code: int) -> None:
        """Note a change that has succeeded in the audit, with the fields of its header."""
        if code == ResponseCode.SUCCESS and self.rule.is_change:
            self._gate.audit.changed(self.name, self.peer, self.code_name, f"{call.args!r}, body of {len(call.body)} bytes")

    def demand(self, rule: AccessRule, call: Call[Any]) -> None:
        """Raise Refused unless a further rule allows the request: one about what a read showed."""
        refusal = rule.refusal(self, call)
        if refusal is not None:
            self.refuse(refusal)

    # --- what rules ask

    def on_topic(self, topic: str, actions: frozenset[Action]) -> str | None:
        """Return why none of the actions on a topic is allowed, None if one is."""
        if self.is_inner:
            return None
        if topic.startswith(RETRY_PREFIX):
            group = topic[len(RETRY_PREFIX) :].partition(_POP_SEPARATOR)[0]
            return self.on_group(group, actions | _SUB if _PUB in actions else actions)
        if is_internal(topic):
            return self._text("Topic", topic, "it is internal: only the cluster's own nodes and super users use it.")
        return self._decide(ResourceType.TOPIC, topic, actions)

    def on_group(self, group: str, actions: frozenset[Action]) -> str | None:
        if self.is_inner:
            return None
        return self._decide(ResourceType.GROUP, group.removeprefix(RETRY_PREFIX), actions)

    def on_cluster(self, actions: frozenset[Action]) -> str | None:
        """Return why none of the actions on the cluster is allowed, None if one is."""
        if self.is_inner or not self._gate.has_rules:
            return None
        why = ""
        for table, account in self.accounts:
            verdict = account.decide(ResourceType.CLUSTER, table.cluster, actions, self.source)
            if verdict.is_allowed:
                return None
            why = why or self._text("Cluster", table.cluster, verdict.why)
        return why

    def on_inner(self) -> str | None:
        """Return why the caller is not one of the cluster's own nodes, None if it is."""
        if self.is_inner:
            return None
        return f"User:{self.name} is neither a node of the cluster nor a super user, which {self.code_name} needs."

    def on_list(self, kind: ResourceType) -> str | None:
        """Return why the caller sees nothing of a type, None if it may see some of it."""
        if self.is_inner or not self._gate.has_rules:
            return None
        if any(may_some(account.policies, kind, Action.LIST, self.source) for _, account in self.accounts):
            return None
        return self._text(kind, "*", "no matched policies.")

    def visible(self, kind: ResourceType, names: Collection[str]) -> Collection[str]:
        """Return the names that the caller may see in a list."""
        if self.is_inner or not self._gate.has_rules:
            return names
        on = self.on_topic if kind is ResourceType.TOPIC else self.on_group
        return [name for name in names if on(name, _LIST) is None]

    def _decide(self, kind: ResourceType, name: str, actions: frozenset[Action]) -> str | None:
        if not self._gate.has_rules:
            return None
        why = ""
        for _, account in self.accounts:
            verdict = account.decide(kind, name, actions, self.source)
            if verdict.is_allowed:
                return None
            why = why or verdict.why
        return self._text(kind, name or "*", why)

    def _text(self, kind: str, name: str, why: str) -> str:
        return f"User:{self.name} has no permission to access {kind}:{name} from {self.peer.host}, {why}"
