"""The promises that a drill checks. Each is a plug-in that `rmqkit.drill.plugin` registers."""

from collections.abc import Mapping

from rmqkit.drill.promises.commits import CommitsForward
from rmqkit.drill.promises.contract import Broken, Finding, Judgement, Promise, judged
from rmqkit.drill.promises.delays import DelayKept
from rmqkit.drill.promises.delivery import EverythingDelivered, NothingUnsent
from rmqkit.drill.promises.epochs import ElectionEnds, EpochsEqual, LeaseKept
from rmqkit.drill.promises.locks import LocksExclusive
from rmqkit.drill.promises.logs import LogsEqual
from rmqkit.drill.promises.offsets import OffsetsStable
from rmqkit.drill.promises.order import QueueOrder
from rmqkit.drill.promises.progress import ProgressForward
from rmqkit.drill.promises.roles import ConfirmForward, OneMaster, OneMasterPerEpoch
from rmqkit.drill.promises.services.pops import PopKept
from rmqkit.drill.promises.services.timers import TimerKept
from rmqkit.drill.promises.services.transactions import TransactionAtomic
from rmqkit.drill.promises.survival import Survival
from rmqkit.drill.promises.waits import Recovers, WaitsBounded
from rmqkit.hookspecs import Factory

#: in the order in which reports show them
PROMISES: Mapping[str, Factory] = {
    made.name: made
    for made in (
        Survival,
        NothingUnsent,
        EverythingDelivered,
        QueueOrder,
        OffsetsStable,
        CommitsForward,
        LogsEqual,
        OneMaster,
        OneMasterPerEpoch,
        ConfirmForward,
        EpochsEqual,
        LeaseKept,
        ElectionEnds,
        LocksExclusive,
        DelayKept,
        TimerKept,
        TransactionAtomic,
        PopKept,
        ProgressForward,
        WaitsBounded,
        Recovers,
    )
}

__all__ = ["PROMISES", "Broken", "Finding", "Judgement", "Promise", "judged"]
