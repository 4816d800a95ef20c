"""The special duties, in the order in which they start."""

from rmqkit.broker.special.contract import SpecialRow
from rmqkit.broker.special.delay.delivery import DelayDelivery
from rmqkit.broker.special.pop.acting_pops import PopProgress
from rmqkit.broker.special.pop.revive import PopRevive
from rmqkit.broker.special.timer.duty import TimerDuty
from rmqkit.broker.special.timer.progress import TimerProgress
from rmqkit.broker.special.transactions.checks import TransactionChecks
from rmqkit.broker.special.transactions.progress import CODE, HalfProgress
from rmqkit.wire.bodies import DelayOffsetTable
from rmqkit.wire.codes import OwnRequestCode, RequestCode

SPECIAL_DUTIES: tuple[SpecialRow, ...] = (
    SpecialRow(
        name="delays",
        progress="delay offsets",
        code=RequestCode.GET_ALL_DELAY_OFFSET,
        field="delay_offsets",
        decode=DelayOffsetTable.decode,
        make=DelayDelivery,
    ),
    SpecialRow(
        name="timers",
        progress="timer checkpoint",
        code=RequestCode.GET_TIMER_CHECK_POINT,
        field="",
        decode=TimerProgress.decode,
        make=TimerDuty,
    ),
    SpecialRow(
        name="transactions",
        progress="transaction offsets",
        code=CODE,
        field="",
        decode=HalfProgress.decode,
        make=TransactionChecks,
        is_own=True,
    ),
    SpecialRow(
        name="pop",
        progress="pop progress",
        code=OwnRequestCode.GET_POP_PROGRESS,
        field="",
        decode=PopProgress.decode,
        make=PopRevive,
    ),
)
