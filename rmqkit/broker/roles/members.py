"""Polls the name servers for the live members of the group, and merges their answers.

Every name server is polled (901) each `syncBrokerMemberGroupPeriod`, and at once when something
hints at a change (905, a registration). A name server older than 5.0 does not know 901. With
`compatibleWithOldNameSrv` it is asked for the route of the topic that each group has for this
purpose.

An id is alive while any name server lists it. Name servers disagree for a while after a change, so:

- A name server that has registered this broker only recently may not know all members yet: it was
  restarted, or it stalled and removed all brokers. For a while it may add members, but not remove
  any.
- The answers of a name server are forgotten once it has not answered for
  `brokerNotActiveTimeoutMillis` and two periods.
- About this broker itself, only an answer counts that was requested after the name server
  registered this broker. If it lists other members but not this broker, the name server has removed
  it (`on_dropped`). If it lists another address under this broker's id, two brokers have the same
  id (`conflict`).

If no name server has answered for as long as they wait for a heartbeat, this broker may be the one
that is cut off (`is_cut_off`). Then it does not register again before it has learned which other
members are alive. If others are listed and this broker is not, it was removed.

Source: `broker/.../BrokerController.syncBrokerMemberGroup`,
`BrokerOuterAPI.getBrokerMemberGroup*`.
"""

from collections.abc import Callable, Mapping
from functools import partial

from rmqkit.broker.context import BrokerContext
from rmqkit.broker.registration import Registration
from rmqkit.broker.roles.liveness import NEVER_MS
from rmqkit.broker.roles.role import Duty, RoleState
from rmqkit.errors import RemoteProtocolError
from rmqkit.runtime.calls import CallFailed, Outcome
from rmqkit.runtime.connection import Address
from rmqkit.wire.bodies import MemberGroupBody, TopicRoute
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.schemas.nameserver import GetBrokerMemberGroupRequest, GetRouteInfoRequest

DUTY = "roles-members"
#: poll interval while the live members are unknown, or if a hint arrived during a poll
SEEK_MS = 50
#: how long to wait for the remaining name servers after the first one has answered
OTHERS_MS = 300
#: a name server is trusted to know all members this long, plus one period, after it has registered
#: this broker: the other members retry their registration each second
RIPE_MS = 1500
#: a conflict is over if it was not seen for this long: every broker registers again within a minute
CONFLICT_MS = 120_000
#: followed by the name of the group (`TopicValidator.SYNC_BROKER_MEMBER_GROUP_PREFIX`)
MEMBER_TOPIC_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"


class MemberView:
    """What one name server has answered; times are monotonic in ms, -1 for never."""

    __slots__ = (
        "answered_ms",
        "asked_ms",
        "body",
        "failure",
        "is_asking",
        "is_old",
        "is_tried",
        "listed",
        "texts",
        "told_ms",
    )

    def __init__(self) -> None:
        #: by id: the address, and when the name server listed it last
        self.listed: dict[int, tuple[Address, int]] = {}
        self.asked_ms = self.answered_ms = -1
        #: when it last returned a list of live members, even an empty one
        self.told_ms = -1
        self.is_asking = False
        #: whether it is older than 5.0 and does not know 901
        self.is_old = False
        #: whether it has answered or failed since the last `seek`
        self.is_tried = False
        self.failure = ""
        #: the last list of live members as it arrived, and the addresses by id in it
        self.body: bytes | None = None
        self.texts: Mapping[int, str] = {}


class MemberPolls:
    """Polls all name servers for the live members of the group, and merges their answers."""

    def __init__(
        self,
        context: BrokerContext,
        role: RoleState,
        registration: Registration,
        on_change: Callable[[], None],
        on_dropped: Callable[[str], None],
    ) -> None:
        self._context = context
        self._role = role
        self._registration = registration
        self._on_change = on_change
        self._on_dropped = on_dropped
        self.views = {address: MemberView() for address in registration.nameservers}
        #: the live members by all name servers together, ordered by id
        self.alive: Mapping[int, Address] = {}
        #: the address that name servers list under this broker's id, if it is another broker's;
        #: else ""
        self.conflict = ""
        self._conflict_until_ms = 0
        #: when the newest poll was sent that a name server has answered
        self._heard_ms = 0
        self._was_cut_off = False
        self._running = False
        self._when_found: Callable[[], None] | None = None
        self._seek_until_ms = 0
        self._first_ms = -1
        self._hinted = False
        context.duties.add(DUTY, self._run, None)

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        self._running = True
        self._heard_ms = self._context.clock.mono_ms
        self._context.duties.wake(DUTY, self._context.clock.mono_ms)

    def stop(self) -> None:
        self._running = False
        self._when_found = None

    def seek(self, then: Callable[[], None]) -> None:
        """Forget the known members and poll again.

        Call `then` once, when the name servers have answered, or when none has answered within
        `brokerNotActiveTimeoutMillis`.
        """
        now_ms = self._context.clock.mono_ms
        for view in self.views.values():
            view.listed.clear()
            view.answered_ms, view.told_ms, view.is_tried = -1, -1, False
            # Earlier polls may be lost, and their answers may be stale.
            view.asked_ms, view.is_asking = now_ms, False
        self._when_found, self._first_ms = then, -1
        self._seek_until_ms = now_ms + self._context.config.acting.not_active_ms
        self._merge(now_ms)
        self._context.duties.wake(DUTY, now_ms)

    def hint(self) -> None:
        """Poll at once: the members may have changed."""
        self._hinted = True
        self._context.duties.wake(DUTY, self._context.clock.mono_ms)

    def knows_heartbeats(self, nameserver: Address) -> bool:
        """Return whether the name server knows heartbeats (904)."""
        return not (self.views[nameserver].is_old and self._context.config.acting.old_nameservers)

    @property
    def is_cut_off(self) -> bool:
        """Whether no name server has answered for so long that they may have removed this broker.

        The limit is one heartbeat interval below `brokerNotActiveTimeoutMillis`, but at least half
        of it: the last heartbeat that arrived may be one interval older than the last answered
        poll.
        """
        acting = self._context.config.acting
        limit_ms = max(acting.not_active_ms - acting.heartbeat_ms, acting.not_active_ms // 2)
        is_silent = self._context.clock.mono_ms - self._heard_ms >= limit_ms
        return is_silent and self._running and self._when_found is None

    @property
    def heard_ms(self) -> int:
        """When the newest poll was sent that a name server has answered (monotonic ms)."""
        return self._heard_ms

    @property
    def is_ripe(self) -> bool:
        """Whether a name server that lists live members has known this broker long enough.

        That is long enough for the other members to have registered there too.
        """
        registered = self._registration.registered
        since_ms = min(
            (registered.get(each, NEVER_MS) for each, view in self.views.items() if view.told_ms >= 0), default=NEVER_MS
        )
        return since_ms + self._ripe_ms() <= self._context.clock.mono_ms

    # --- polls ------------------------------------------------------------------------------------

    def _run(self, now_ms: int) -> int | None:
        if not self._running:
            return None
        self._check_silence()
        self._merge(now_ms)
        self._end_seeking(now_ms)
        is_late = now_ms + 1 - self._context.config.acting.member_sync_ms
        for address, view in self.views.items():
            is_sought = self._when_found is not None and view.answered_ms < 0
            is_asking = view.is_asking and now_ms - view.asked_ms < self._context.config.acting.heartbeat_timeout_ms
            if not is_asking and (self._hinted or is_sought or view.asked_ms < is_late):
                self._ask(address, view, now_ms)
        # The answer to a poll that was in flight when the hint arrived may be older than the hint.
        self._hinted = self._hinted and any(view.is_asking and view.asked_ms < now_ms for view in self.views.values())
        quick = self._when_found is not None or self._hinted
        return now_ms + min(SEEK_MS if quick else self._period_ms(), self._period_ms())

    def _period_ms(self) -> int:
        return self._context.config.acting.member_sync_ms

    def _ripe_ms(self) -> int:
        return RIPE_MS + self._period_ms()

    def _ask(self, address: Address, view: MemberView, now_ms: int) -> None:
        context = self._context
        identity, acting = context.config.identity, context.config.acting
        view.is_asking, view.asked_ms = True, now_ms
        # When a call times out, its connection is closed, and with it the registration. So the
        # timeout ends no earlier than the name server may have removed this broker: a short stall
        # of a name server then costs nothing.
        timeout_ms = max(acting.heartbeat_timeout_ms, view.answered_ms + acting.not_active_ms - now_ms)
        then = partial(self._answered, address, now_ms)
        if view.is_old:
            topic = GetRouteInfoRequest(topic=MEMBER_TOPIC_PREFIX + identity.broker_name)
            code = RequestCode.GET_ROUTEINFO_BY_TOPIC
            context.remoting.call(address, code, topic, timeout_ms=timeout_ms, then=then)
            return
        group = GetBrokerMemberGroupRequest(cluster_name=identity.broker_cluster_name, broker_name=identity.broker_name)
        code = RequestCode.GET_BROKER_MEMBER_GROUP
        context.remoting.call(address, code, group, timeout_ms=timeout_ms, then=then)

    def _answered(self, address: Address, asked_ms: int, outcome: Outcome) -> None:
        view = self.views[address]
        if not self._running or asked_ms != view.asked_ms or not view.is_asking:
            return
        now_ms = self._context.clock.mono_ms
        view.is_asking = False
        listed = self._read(view, outcome)
        if listed is None and view.is_old and not view.failure:
            self._ask(address, view, now_ms)
            return
        # A lost connection does not count as a failure: the name server may answer on the next one.
        view.is_tried = not isinstance(outcome, CallFailed) or outcome.kind != "lost"
        if not isinstance(outcome, CallFailed):
            # A name server that cannot list members is reachable all the same.
            view.answered_ms = now_ms
            was_cut_off, self._heard_ms = self.is_cut_off, max(self._heard_ms, asked_ms)
            if listed is not None:
                self._take(address, view, listed, was_cut_off)
            self._check_silence()
        self._end_seeking(now_ms)

    def _read(self, view: MemberView, outcome: Outcome) -> Mapping[int, str] | None:
        """Return the addresses by id.

        None if the answer has none: then `failure` says why, or `is_old` was set and the name
        server is to be polled again as an old one.
        """
        if isinstance(outcome, CallFailed):
            view.failure, view.is_old = outcome.text, False
            return None
        view.failure = ""
        try:
            if outcome.is_ok and view.is_old:
                name = self._context.config.identity.broker_name
                groups = TopicRoute.decode(outcome.body).broker_datas
                return dict(next((group.broker_addrs for group in groups if group.broker_name == name), {}))
            if outcome.is_ok:
                # Members rarely change, and decoding costs most of a poll.
                if outcome.body != view.body:
                    group = MemberGroupBody.decode(outcome.body).broker_member_group
                    view.body, view.texts = outcome.body, {} if group is None else group.broker_addrs
                return view.texts
        except RemoteProtocolError as error:
            view.failure = f"its answer cannot be read: {error}"
            return None
        if view.is_old and outcome.code == ResponseCode.TOPIC_NOT_EXIST:
            return {}
        if outcome.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED or view.is_old:
            view.failure = f"code {outcome.code}: {outcome.remark}"
        elif not self._context.config.acting.old_nameservers:
            view.failure = "it is older than 5.0 and cannot list live members, and compatibleWithOldNameSrv is false"
        else:
            view.is_old = True
        return None

    # --- answers ----------------------------------------------------------------------------------

    def _take(self, address: Address, view: MemberView, texts: Mapping[int, str], was_cut_off: bool) -> None:
        context, now_ms = self._context, self._context.clock.mono_ms
        own_id, own = context.config.identity.broker_id, context.address
        listed = {broker_id: found for broker_id, text in texts.items() if (found := self._parse(address, text))}
        registered_ms = self._registration.registered.get(address)
        was_asked_after = registered_ms is not None and registered_ms < view.asked_ms
        if was_asked_after:
            self._check_conflict(listed.get(own_id, own), now_ms)
        listed.pop(own_id, None)
        is_ripe = registered_ms is not None and registered_ms + self._ripe_ms() <= view.asked_ms
        if is_ripe or not self._role.does(Duty.REGISTER):
            view.listed.clear()
        view.told_ms = now_ms
        view.listed.update({broker_id: (found, now_ms) for broker_id, found in listed.items()})
        self._merge(now_ms)
        if listed and own_id not in texts and (was_asked_after or was_cut_off):
            cut_off = "" if was_asked_after else "it was cut off from the name servers: "
            self._on_dropped(f"{cut_off}{address} has removed it, and lists {_ids(listed)} of its group")

    def _parse(self, nameserver: Address, text: str) -> Address | None:
        try:
            return Address.parse(text)
        except ValueError as error:
            self._context.log.warning("member-address-unreadable", nameserver=str(nameserver), reason=str(error))
            return None

    def _check_conflict(self, listed: Address, now_ms: int) -> None:
        """Set or clear `conflict`.

        Two brokers with one id replace each other in the name servers' tables, in turns. So a
        conflict is over only once it was not seen for `CONFLICT_MS`.
        """
        before = self.conflict
        if listed != self._context.address:
            self.conflict = str(listed)
            self._conflict_until_ms = now_ms + CONFLICT_MS
        elif now_ms >= self._conflict_until_ms:
            self.conflict = ""
        if self.conflict == before:
            return
        own_id = self._context.config.identity.broker_id
        if self.conflict:
            self._context.log.error(
                "broker-id-twice", broker_id=own_id, other=self.conflict, own=self._context.address_text
            )
        self._on_change()

    def _merge(self, now_ms: int) -> None:
        """Drop stale entries and recompute `alive`.

        Of two addresses of an id the newer one counts.
        """
        context = self._context
        acting = context.config.acting
        oldest_ms = now_ms - acting.not_active_ms - 2 * acting.member_sync_ms
        newest: dict[int, tuple[int, Address]] = {}
        for view in self.views.values():
            view.listed = {broker_id: each for broker_id, each in view.listed.items() if each[1] >= oldest_ms}
            for broker_id, (address, seen_ms) in view.listed.items():
                if broker_id not in newest or newest[broker_id][0] < seen_ms:
                    newest[broker_id] = (seen_ms, address)
        alive = {broker_id: address for broker_id, (_, address) in newest.items()}
        if self._registration.registered:
            alive[context.config.identity.broker_id] = context.address
        alive = dict(sorted(alive.items()))
        if alive != self.alive:
            self.alive = alive
            self._on_change()

    def _check_silence(self) -> None:
        """Log and announce when contact with the name servers is lost, and when it is back."""
        was_cut_off, self._was_cut_off = self._was_cut_off, self.is_cut_off
        if was_cut_off == self._was_cut_off:
            return
        if was_cut_off:
            self._context.log.info("name-servers-heard-again")
            self._registration.hurry()
        else:
            self._context.log.warning("no-name-server-heard", failures=self.failures())
        self._on_change()

    def _end_seeking(self, now_ms: int) -> None:
        then = self._when_found
        if then is None:
            return
        views = self.views.values()
        has_answer = any(view.answered_ms >= 0 for view in views)
        if has_answer and self._first_ms < 0:
            self._first_ms = now_ms
        is_known = has_answer and (all(view.is_tried for view in views) or now_ms >= self._first_ms + OTHERS_MS)
        if is_known or now_ms >= self._seek_until_ms:
            self._when_found = None
            if not has_answer:
                # `is_cut_off` becomes true at once: a later answer decides whether other members
                # took over.
                self._heard_ms = now_ms - self._context.config.acting.not_active_ms
            then()

    def failures(self) -> str:
        return "; ".join(f"{address}: {view.failure}" for address, view in self.views.items() if view.failure)


def _ids(listed: Mapping[int, Address]) -> str:
    ids = ", ".join(map(str, sorted(listed)))
    return f"id {ids}" if len(listed) == 1 else f"ids {ids}"
