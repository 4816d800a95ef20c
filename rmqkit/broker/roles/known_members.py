"""Known members: the group members that a broker has known before (`config/memberGroup.json`).

A broker may start while no name server answers, or while a new one does not list any member yet. It
would then go online as if it were alone, although other members may have newer progress. So the
broker saves the addresses that name servers list, and asks those members directly.

A saved address is only a hint: by now it may belong to another broker. So the broker asks each
member for its settings (26), which every RocketMQ broker answers, also one that is not online. The
member counts only if its cluster, broker name and id are the saved ones. Members that count are
alive, and pre-online continues with them. A slave of ours checks the name once more when a master
calls it (906).

    nobody listens there     skipped at once
    still starting           asked again, for at most `ASK_MS`
    no answer                given up after `ASK_MS` in all

Members that are gone are kept, too: a member that is gone today may be the only one alive tomorrow.
An address has one id and an id one address, the newest. Above `KEPT_MAX` members, those listed
longest ago are dropped. The file is written when its content changes. A file that cannot be read,
or that is another broker's, is ignored.
"""

from collections.abc import Callable, Mapping
from functools import partial

from rmqkit.broker.context import BrokerContext
from rmqkit.config import parse_properties
from rmqkit.errors import ConfigError
from rmqkit.runtime.atomic_file import AtomicFile, AtomicFileDamaged
from rmqkit.runtime.calls import CallFailed, Outcome
from rmqkit.runtime.connection import Address
from rmqkit.wire import fastjson
from rmqkit.wire.codes import RequestCode, ResponseCode

FILE = "memberGroup.json"
DUTY = "roles-remembered"
#: how long all members together have to answer
ASK_MS = 3000
#: pause before a member that is still starting is asked again
RETRY_MS = 50
KEPT_MAX = 32
BUSY = (ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_BUSY)

#: called with the members that answered, by id
Then = Callable[[dict[int, Address]], None]


class KnownMembers:
    """The saved members of the group, and one round of requests to them at a time."""

    def __init__(self, context: BrokerContext, folder: str) -> None:
        self._context = context
        #: the saved members; the one listed last by a name server is the last
        self.by_id: dict[int, Address] = {}
        self._file = AtomicFile(context.disk, f"{folder}/{FILE}")
        self._then: Then | None = None
        self._found: dict[int, Address] = {}
        #: ids without an answer, with the monotonic time in ms of the next request; None: one is in
        #: flight
        self._asked: dict[int, int | None] = {}
        self._deadline_ms = 0
        #: number of the current round of requests; answers to earlier rounds are ignored
        self._round = 0
        context.duties.add(DUTY, self._run, None)

    # --- the file ---------------------------------------------------------------------------------

    def load(self) -> None:
        identity = self._context.config.identity
        try:
            kept = self._file.load(_read)
        except AtomicFileDamaged as error:
            self._context.log.warning("members-unreadable", file=self._file.path, error=str(error))
            return
        if kept is not None and kept[:2] == (identity.broker_cluster_name, identity.broker_name):
            self.by_id = {each: address for each, address in kept[2].items() if not self._is_own(each, address)}

    def note(self, listed: Mapping[int, Address]) -> None:
        """Save the members that name servers list; this broker is left out."""
        others = {each: address for each, address in listed.items() if not self._is_own(each, address)}
        before = self.by_id
        kept = {each: address for each, address in before.items() if each not in others}
        kept = {each: address for each, address in kept.items() if address not in others.values()}
        self.by_id = dict([*kept.items(), *others.items()][-KEPT_MAX:])
        if self.by_id != before or self._file.error is not None:
            self._file.save(self._content)

    def _is_own(self, broker_id: int, address: Address) -> bool:
        return broker_id == self._context.config.identity.broker_id or address == self._context.address

    def _content(self) -> bytes:
        identity = self._context.config.identity
        members = {str(each): str(address) for each, address in self.by_id.items()}
        table = {"clusterName": identity.broker_cluster_name, "brokerName": identity.broker_name, "members": members}
        return fastjson.dumps(table)

    # --- requests ---------------------------------------------------------------------------------

    def ask(self, then: Then) -> None:
        """Ask all saved members. Call `then` once, within `ASK_MS`, with those that answered."""
        now_ms = self._context.clock.mono_ms
        self._round += 1
        self._then, self._found, self._deadline_ms = then, {}, now_ms + ASK_MS
        self._asked = dict.fromkeys(self.by_id, now_ms)
        self._context.duties.wake(DUTY, now_ms)

    def end_round(self) -> None:
        """End the current round, if there is one, with the members that have answered by now."""
        self._deadline_ms = self._context.clock.mono_ms
        self._context.duties.wake(DUTY, self._deadline_ms)

    def stop(self) -> None:
        self._then = None
        self._round += 1

    def _run(self, now_ms: int) -> int | None:
        if self._then is None:
            return None
        if not self._asked or now_ms >= self._deadline_ms:
            then, self._then = self._then, None
            self._round += 1
            found = {each: str(address) for each, address in sorted(self._found.items())}
            self._context.log.info("members-asked", there=found, silent=sorted(self._asked))
            then(dict(sorted(self._found.items())))
            return None
        for broker_id, due_ms in list(self._asked.items()):
            if due_ms is not None and now_ms >= due_ms:
                self._asked[broker_id] = None
                self._call(broker_id)
        return min([self._deadline_ms, *(due_ms for due_ms in self._asked.values() if due_ms is not None)])

    def _call(self, broker_id: int) -> None:
        then = partial(self._answered, self._round, broker_id)
        left_ms = max(1, self._deadline_ms - self._context.clock.mono_ms)
        code = RequestCode.GET_BROKER_CONFIG
        self._context.remoting.call(self.by_id[broker_id], code, timeout_ms=left_ms, then=then)

    def _answered(self, number: int, broker_id: int, outcome: Outcome) -> None:
        if number != self._round:
            return
        now_ms = self._context.clock.mono_ms
        is_starting = outcome.kind in ("lost", "closed") if isinstance(outcome, CallFailed) else outcome.code in BUSY
        if is_starting:
            self._asked[broker_id] = now_ms + RETRY_MS
        elif not isinstance(outcome, CallFailed) or outcome.kind == "connect":
            del self._asked[broker_id]
            if not isinstance(outcome, CallFailed):
                self._take(broker_id, outcome.body if outcome.is_ok else b"")
        self._context.duties.wake(DUTY, now_ms)

    def _take(self, broker_id: int, body: bytes) -> None:
        identity, address = self._context.config.identity, self.by_id[broker_id]
        wanted = (identity.broker_cluster_name, identity.broker_name, str(broker_id))
        try:
            said = parse_properties(body.decode())
        except (ConfigError, UnicodeDecodeError):
            said = {}
        who = tuple(said.get(key, "") for key in ("brokerClusterName", "brokerName", "brokerId"))
        if who == wanted:
            self._found[broker_id] = address
        else:
            self._context.log.warning("member-is-another", address=str(address), wanted=wanted, found=who)


def _read(content: bytes) -> tuple[str, str, dict[int, Address]]:
    """Return cluster, broker name and addresses by id.

    Raises RemoteProtocolError or ValueError if the content is no such table.
    """
    table = fastjson.loads(content)
    try:
        members = {int(each): Address.parse(text) for each, text in table["members"].items()}
        return str(table["clusterName"]), str(table["brokerName"]), members
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a table of members: {error!r}") from None
