"""The services' loads by name, and which of them a drill has when none is named."""

from collections.abc import Callable, Mapping, Sequence

from rmqkit.drill.plan import POP, SERVICES, TIMERS, TRANSACTIONS, Plan, PlanError
from rmqkit.drill.promises.services.transactions import INTERVAL_MS, ROUNDS, TIMEOUT_MS
from rmqkit.drill.real.services.contract import ReadTopic, ServiceClients
from rmqkit.drill.real.services.pop_load import PopLoad
from rmqkit.drill.real.services.timer_load import TimerLoad
from rmqkit.drill.real.services.transaction_load import TransactionLoad
from rmqkit.drill.services.service_rows import ServiceRows
from rmqkit.runtime.connection import Address

#: the word of `--load` for a drill without timers, transactions and pop
NO_LOAD = "none"
#: settings of a cluster that a drill starts, so that the services' work fits into a drill
SETTINGS: Mapping[str, Mapping[str, str]] = {
    TIMERS: {"recallMessageEnable": "true"},
    TRANSACTIONS: {"transactionTimeOut": "1000", "transactionCheckInterval": "1000"},
    POP: {},
}
#: service → the setting without which brokers refuse it, and its value; popped messages wait in the
#: timers for their revival
NEEDS: Mapping[str, tuple[str, str]] = {
    TIMERS: ("timerWheelEnable", "true"),
    TRANSACTIONS: ("rejectTransactionMessage", "false"),
    POP: ("timerWheelEnable", "true"),
}
#: without `--load`, transactions are part of a drill if a half is checked within this time
CHECKED_MAX_MS = 10_000
#: limit for everything that is pending at the end of the load, beyond the times of the services
DRAIN_MS = 15_000


def make_loads(
    rows: ServiceRows, *, namesrv: str, read: ReadTopic, nodes: Mapping[str, str], brokers: Sequence[str]
) -> list[ServiceClients]:
    """Return the loads of the plan's services.

    `nodes` maps the addresses of the brokers to their node names; `brokers` are the names of all
    broker groups.
    """
    nameserver = Address.parse(namesrv.partition(";")[0])
    table: Mapping[str, Callable[[], ServiceClients]] = {
        TIMERS: lambda: TimerLoad(rows, namesrv=namesrv, read=read),
        TRANSACTIONS: lambda: TransactionLoad(rows, namesrv=namesrv, read=read, nodes=nodes),
        POP: lambda: PopLoad(rows, nameserver=nameserver, nodes=nodes, brokers=brokers),
    }
    return [table[service]() for service in rows.plan.services]


def parse_load(text: str) -> tuple[str, ...]:
    """Return the services that `--load` names, in the order of `SERVICES`. Raises PlanError."""
    named = [word.strip() for word in text.split(",") if word.strip()]
    for word in named:
        if word not in (*SERVICES, NO_LOAD):
            raise PlanError(f"there is no load {word}; there are {', '.join(SERVICES)}, or {NO_LOAD} for none of them")
    if NO_LOAD in named and len(named) > 1:
        raise PlanError(f"--load {text}: {NO_LOAD} cannot be combined with a load")
    if not named:
        raise PlanError(f"--load is empty; name some of {', '.join(SERVICES)}, or {NO_LOAD}")
    return tuple(service for service in SERVICES if service in named)


def default_load(plan: Plan) -> tuple[str, ...]:
    """Return the services of a drill without `--load`: those whose work fits into a minute.

    Timers and pop always do. A half message whose producer dies is checked after
    `transactionTimeOut`, in rounds of `transactionCheckInterval`: with Apache's defaults only after
    36 s. Services that the brokers refuse are left out.
    """
    fits = {TIMERS: True, TRANSACTIONS: checked_ms(plan) <= CHECKED_MAX_MS, POP: True}
    return tuple(service for service in SERVICES if fits[service] and not _is_refused(plan, service))


def check_load(plan: Plan) -> None:
    """Raises PlanError if the brokers refuse a service of the plan (`Plan.seen`)."""
    for service in plan.services:
        if _is_refused(plan, service):
            key, value = NEEDS[service]
            raise PlanError(
                f"the brokers refuse the load {service}, because {key} is {plan.word(key)}: set {key}={value},"
                " or name other loads with --load"
            )


def _is_refused(plan: Plan, service: str) -> bool:
    key, value = NEEDS[service]
    return plan.word(key, value).lower() != value


def checked_ms(plan: Plan) -> int:
    """Return after which time a half without an outcome is checked at the latest, in ms."""
    timeout_ms = plan.setting("transactionTimeOut", TIMEOUT_MS)
    return timeout_ms + plan.setting("transactionCheckInterval", INTERVAL_MS)


def drain_ms(plan: Plan) -> int:
    """Return the limit for everything pending to end once nothing is sent any more; 0 for no load.

    The longest wait is that of a half whose first checks are not answered. It is as long as the
    promise `transaction-atomic` allows, so every half is judged.
    """
    if not plan.services:
        return 0
    checks_ms = checked_ms(plan) + (ROUNDS - 1) * plan.setting("transactionCheckInterval", INTERVAL_MS)
    return DRAIN_MS + (checks_ms if TRANSACTIONS in plan.services else 0)
