"""Requests between the members of a group, and their answers: 906, 43, and 45 (special duties).

906 EXCHANGE_BROKER_HA_INFO has several meanings here. Which fields the request has decides which:

    no field         where is your HA port, where does your log end?  to any broker, Apache's too;
                     a slave also answers whether its master is given up (`roles/group_contact.py`)
    broker_name      this HA connection is mine; is my log yours?     slave to master
    tail_*           do you have these bytes at this offset?          slave to master, to truncate
    master_address   I am your master and I am back: follow me        master to every other member

A returning master sends every other member these requests, in this order (`roles/reverse_sync.py`
drives it):

    906 with master_address   the member follows this master from now on; an acting master stops
                              its special duties
    45                        the progress of the member's special duties; answered once none of
                              their puts is in flight
    43 with `resets`          the consumer offsets, with the times of resets

A slave that copies metadata polls 43 with `known_changes` (`broker/metadata`).

Source: `broker/.../BrokerPreOnlineService.java`, `AdminBrokerProcessor.updateBrokerHaInfo`.
"""

from collections.abc import Callable
from typing import Protocol

from rmqkit.broker.context import BrokerContext
from rmqkit.broker.replication import log_tail
from rmqkit.broker.replication.ha_connection import Binding
from rmqkit.broker.replication.log_tail import LogStart, LogTail
from rmqkit.broker.replication.members import ReplicaMembers
from rmqkit.config import BrokerRole
from rmqkit.runtime.calls import Outcome, Refused
from rmqkit.runtime.connection import Address
from rmqkit.store.contract import StorageEngine
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.schema import Ext
from rmqkit.wire.schemas.admin import ExchangeHAInfoRequest, ExchangeHAInfoResponse
from rmqkit.wire.schemas.offsets import GetAllConsumerOffsetRequest

#: how long a slave waits for an answer
SLAVE_TIMEOUT_MS = 3000
#: how long a returning master waits for an answer; it retries
RETURN_TIMEOUT_MS = 2000

Then = Callable[[Outcome], None]


class Follower(Protocol):
    """What the answers need of the slave's side of replication."""

    @property
    def is_truncating(self) -> bool: ...
    def master_returns(self, master: Address, master_ha: Address, start_id: str | None) -> None: ...


class MemberCalls:
    """Sends requests to another member; `then` gets the answer, or the reason why there is none."""

    def __init__(self, context: BrokerContext, store: StorageEngine, start: LogStart) -> None:
        self._context = context
        self._store = store
        self._start = start

    def locate(self, member: Address, then: Then) -> None:
        """Ask a member for its HA address and for the end of its log."""
        self._exchange(member, ExchangeHAInfoRequest(), SLAVE_TIMEOUT_MS, then)

    def contact(self, member: Address, timeout_ms: int, then: Then) -> None:
        """Ask a slave whether this master is given up (`master_given_up` of the answer)."""
        self._exchange(member, ExchangeHAInfoRequest(), timeout_ms, then)

    def bind(self, master: Address, local: Address | None, tail: LogTail, then: Then) -> None:
        """Claim the HA connection from `local`, and ask if this log begins the master's."""
        config = self._context.config
        request = ExchangeHAInfoRequest(
            broker_name=config.identity.broker_name,
            broker_id=config.identity.broker_id,
            broker_address=self._context.address_text,
            ha_local_address=str(local) if local is not None else None,
            log_end=self._store.offset_written,
            tail_offset=tail.offset,
            tail_size=tail.size,
            tail_crc=tail.crc,
            from_start=not config.replication.sync_from_last_file,
            file_size=config.commit_log.mapped_file_size_commit_log,
        )
        self._exchange(master, request, SLAVE_TIMEOUT_MS, then)

    def compare(self, master: Address, tail: LogTail, then: Then) -> None:
        """Ask whether the master has the same bytes; the answer has it as `tail_matches`."""
        request = ExchangeHAInfoRequest(tail_offset=tail.offset, tail_size=tail.size, tail_crc=tail.crc)
        self._exchange(master, request, SLAVE_TIMEOUT_MS, then)

    def announce_return(self, member: Address, then: Then) -> None:
        """Tell a member that this master is back, and that it should follow this master."""
        request = ExchangeHAInfoRequest(
            master_ha_address=self._context.ha_address_text,
            master_flush_offset=self._start.end,
            master_address=self._context.address_text,
            broker_name=self._context.config.identity.broker_name,
            log_end=self._store.offset_written,
            master_start_id=self._start.id,
        )
        self._exchange(member, request, RETURN_TIMEOUT_MS, then)

    def progress(self, member: Address, code: int, then: Then) -> None:
        """Ask for the progress of the special duty with this request code."""
        self._context.remoting.call(member, code, timeout_ms=RETURN_TIMEOUT_MS, then=then)

    def offsets(self, member: Address, then: Then) -> None:
        """Ask for the consumer offsets, with the times of resets."""
        code, request = RequestCode.GET_ALL_CONSUMER_OFFSET, GetAllConsumerOffsetRequest(resets=True)
        self._context.remoting.call(member, code, request, timeout_ms=RETURN_TIMEOUT_MS, then=then)

    def _exchange(self, member: Address, request: Ext, timeout_ms: int, then: Then) -> None:
        code = RequestCode.EXCHANGE_BROKER_HA_INFO
        self._context.remoting.call(member, code, request, timeout_ms=timeout_ms, then=then)


class MemberAnswers:
    """Answers 906 of other members."""

    def __init__(
        self,
        context: BrokerContext,
        store: StorageEngine,
        start: LogStart,
        members: ReplicaMembers,
        follower: Follower,
        is_master_given_up: Callable[[], bool],
    ) -> None:
        self._context = context
        self._store = store
        self._start = start
        self._members = members
        self._follower = follower
        #: whether this slave acts for its master, or its name servers no longer list the master
        self._is_master_given_up = is_master_given_up
        #: time of the last answer to any member that the master is not given up (monotonic ms);
        #: -1: there was none
        self.followed_ms = -1
        #: controller mode: whether the controllers have named this master; else every one is
        self.is_elected: Callable[[Address], bool] = lambda master: True
        #: called when a returning master has announced itself and this slave follows it
        self.on_return: list[Callable[[], None]] = []

    @property
    def _is_slave(self) -> bool:
        return self._context.config.identity.broker_role is BrokerRole.SLAVE

    def exchange(self, args: ExchangeHAInfoRequest, peer: Address) -> ExchangeHAInfoResponse:
        """Answer 906; which fields it has decides what is asked (see the module).

        Raises Refused.
        """
        if args.master_address is not None or args.master_ha_address is not None:
            return self._follow(args)
        if args.broker_name is not None:
            refusal = self._bind(args)
            if refusal:
                self._context.log.warning("replica-refused", peer=str(peer), reason=refusal)
                raise Refused(ResponseCode.INVALID_PARAMETER, refusal)
        if self._is_slave:
            given_up = self._is_master_given_up() or None
            if not given_up and args.broker_name is None:
                self.followed_ms = self._context.clock.mono_ms
            return ExchangeHAInfoResponse(log_end=self._store.offset_written, master_given_up=given_up)
        same = log_tail.is_same(self._store, LogTail(args.tail_offset, args.tail_size, args.tail_crc))
        return ExchangeHAInfoResponse(
            master_ha_address=self._context.ha_address_text,
            master_flush_offset=self._start.end,
            master_address=self._context.address_text,
            master_log_begin=self._store.offset_min,
            master_log_end=self._store.offset_written,
            master_start_id=self._start.id,
            tail_matches=None if same is None else str(same).lower(),
        )

    def _bind(self, args: ExchangeHAInfoRequest) -> str:
        """Bind a slave to the HA connection that it claims. Return why that is refused, or ""."""
        config = self._context.config
        name = config.identity.broker_name
        if args.broker_name != name:
            return f"this is {name}, not {args.broker_name}: a slave has its master's brokerName"
        if self._is_slave:
            return "this broker is a slave itself"
        if args.broker_id is None or args.broker_id <= 0:
            return f"a slave needs a brokerId above 0, not {args.broker_id}"
        file_size = config.commit_log.mapped_file_size_commit_log
        if args.file_size not in (None, file_size):
            sizes = f"{file_size} bytes, this slave's of {args.file_size}"
            return f"the master's log has files of {sizes}: mappedFileSizeCommitLog must be the same"
        if args.ha_local_address is None:
            return ""
        try:
            peer = Address.parse(args.ha_local_address)
        except ValueError as error:
            return str(error)
        binding = Binding(args.broker_id, args.broker_address or "", bool(args.from_start))
        return self._members.bind(peer, binding)

    def _follow(self, args: ExchangeHAInfoRequest) -> ExchangeHAInfoResponse:
        """Follow the returning master at once, before the name servers know it.

        Raises Refused if this broker is a master, if the request is wrong, or during a truncation.
        """
        name = self._context.config.identity.broker_name
        if args.broker_name not in (None, name):
            raise Refused(ResponseCode.INVALID_PARAMETER, f"this is {name}, not {args.broker_name}")
        if not self._is_slave:
            raise Refused(ResponseCode.INVALID_PARAMETER, "this broker is a master itself")
        try:
            master, master_ha = Address.parse(args.master_address or ""), Address.parse(args.master_ha_address or "")
        except ValueError as error:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"cannot read the master's addresses: {error}") from None
        if not self.is_elected(master):
            raise Refused(ResponseCode.SYSTEM_BUSY, f"no controller has named {master} yet: ask again")
        if self._follower.is_truncating:
            raise Refused(ResponseCode.SYSTEM_BUSY, "this log is being truncated: ask again when its end is known")
        self._context.log.info("summoned", master=str(master), ha_address=str(master_ha))
        # A dial from the time of the absence could last longer than the master waits.
        self._context.remoting.dial_again(master)
        self._follower.master_returns(master, master_ha, args.master_start_id)
        for then in self.on_return:
            then()
        end = self._store.offset_written
        tail = log_tail.tail_of(self._context, self._store, min(end, end if args.log_end is None else args.log_end))
        return ExchangeHAInfoResponse(log_end=end, tail_offset=tail.offset, tail_size=tail.size, tail_crc=tail.crc)
