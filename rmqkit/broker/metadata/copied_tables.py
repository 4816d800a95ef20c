"""CopiedTables: the tables that a slave copies from its master besides the log."""

from typing import NamedTuple

from rmqkit.access.table import AccessTable
from rmqkit.broker.locks.lock_table import LockTable
from rmqkit.broker.special.duties import SpecialDuties
from rmqkit.broker.tables.groups import GroupTable
from rmqkit.broker.tables.offsets import OffsetTable
from rmqkit.broker.tables.topics import TopicTable


class CopiedTables(NamedTuple):
    """The tables of one broker that are copied from master to slave."""

    topics: TopicTable
    groups: GroupTable
    offsets: OffsetTable
    special: SpecialDuties
    #: leases of lock mode `loose`; None in other modes
    leases: LockTable | None = None
    #: users and access rules; None while access control is off
    access: AccessTable | None = None
