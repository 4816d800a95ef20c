"""KnownMembers: the members of its group that a broker has known (`config/memberGroup.json`), and which are alive now.

A broker that starts while no name server answers, or while a new one lists nobody yet, would go online as if it were alone,
with progress that others have moved on meanwhile. So the addresses that name servers have told are kept, and those
members are asked themselves. What is kept is a hint and nothing more: an address may belong to another broker by now. So
each is asked for its settings (26, which any broker of RocketMQ answers, also one that is not online), and counts only
when cluster, broker name and id are those that were kept. Whoever answers so is alive, and pre-online goes on with it; a
slave of ours looks at the name once more when a master calls it (906).

    nobody listens there     left out at once
    still starting           asked again, `ASK_MS` at most
    no answer                waited for, `ASK_MS` in all

Kept are members that were listed, also those that are gone now: who is gone today may be all that is there tomorrow. An
address has one id, an id one address, the newest; of more than `KEPT_MAX` the ones listed longest ago are forgotten. The
file is written when its content changes. One that cannot be read, or is of another broker, counts as none.
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
#: how long members are asked, in all
ASK_MS = 3000
#: until the next try of one that is starting
RETRY_MS = 50
KEPT_MAX = 32
BUSY = (ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_BUSY)

#: those that are there, by id
Then = Callable[[dict[int, Address]], None]


class KnownMembers:
    def __init__(self, context: BrokerContext, folder: str) -> None:
        self._context = context
        #: in the order in which they were listed last
        self.by_id: dict[int, Address] = {}
        self._file = AtomicFile(context.disk, f"{folder}/{FILE}")
        self._then: Then | None = None
        self._found: dict[int, Address] = {}
        #: those that have not answered, and when they are asked again; None: they are being asked
        self._asked: dict[int, int | None] = {}
        self._deadline_ms = 0
        #: counts the times that members are asked: what an earlier time is answered does not count
        self._round = 0
        context.duties.add(DUTY, self._run, None)

    # --- the file -----------------------------------------------------------------------------------------------------

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
        """Name servers list these; this broker may be among them."""
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

    # --- asking -------------------------------------------------------------------------------------------------------

    def ask(self, then: Then) -> None:
        """Call `then` once with those that are there, within `ASK_MS`."""
        now_ms = self._context.clock.mono_ms
        self._round += 1
        self._then, self._found, self._deadline_ms = then, {}, now_ms + ASK_MS
        self._asked = dict.fromkeys(self.by_id, now_ms)
        self._context.duties.wake(DUTY, now_ms)

    def enough(self) -> None:
        """Those that have answered by now are who is there, if anybody is being asked."""
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
    """Cluster, broker name and addresses by id. Raises RemoteProtocolError, ValueError."""
    table = fastjson.loads(content)
    try:
        members = {int(each): Address.parse(text) for each, text in table["members"].items()}
        return str(table["clusterName"]), str(table["brokerName"]), members
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a table of members: {error!r}") from None
