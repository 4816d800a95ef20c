"""Reads refusals of access control, and logs each of them once.

Brokers refuse with 16 NO_PERMISSION for other reasons too, such as a broker that is not writable.
Only the remark tells them apart. Producers send again after the others; after a refusal by access
control another try has the same result.

Source: remarks of `auth/.../chain/{AclAuthorizationHandler,UserAuthorizationHandler}.java`,
`auth/.../chain/DefaultAuthenticationHandler.java`, `auth/.../strategy/*.java`.
"""

import re
from typing import Any

from rmqkit.errors import AccessDenied
from rmqkit.runtime.calls import Reply, code_name
from rmqkit.runtime.ports import Clock, Log
from rmqkit.wire.codes import ResponseCode

#: ms before a consumer tries again what access control refused
RETRY_AFTER_DENIED_MS = 10_000
#: ms before the same refusal is logged again
LOG_AGAIN_MS = 600_000
#: different refusals whose time of logging is kept; a full table is emptied
LOGGED_MAX = 1000

_NO_RIGHT = re.compile(r"User:(?P<user>.*) has no permission to access (?P<resource>.*) from (?P<source>.*?), (?P<why>.*)")
#: rmqkit's own
_NOT_INNER = re.compile(r"User:(?P<user>.*) (?P<why>is neither a node of the cluster nor a super user), which .* needs\.")
_NO_USER = re.compile(r"User:(?P<user>.*?) (?:is not found|is disabled|not found)\.?")
_WHY = {"no matched policies.": "no rule allows it", "the decision is deny.": "a rule denies it"}
_UNSIGNED = "username cannot be null."
_BAD_SIGNATURE = "check signature failed."
#: beginnings of remarks that name no user
_OTHERS = (
    "parse authorization context error.",
    "Authentication failed.",
    "Authorization failed.",
    "The authenticationMetadataProvider is not configured",
    "The authorizationMetadataProvider is not configured",
)


def denial_of(reply: Reply, request: int) -> AccessDenied | None:
    """Return the refusal if access control made it. `request` is the request's code."""
    if reply.code != ResponseCode.NO_PERMISSION:
        return None
    remark, address = reply.remark, reply.address
    user = resource = ""
    if found := _NO_RIGHT.fullmatch(remark):
        user, resource = found["user"], found["resource"]
        why = _WHY.get(found["why"], found["why"])
        text = f"user {user} has no right to {resource} (from {found['source']}): {why}"
    elif found := _NOT_INNER.fullmatch(remark):
        user = found["user"]
        text = f"user {user} {found['why']}"
    elif found := _NO_USER.fullmatch(remark):
        user = found["user"]
        text = f"user {user} is {'disabled' if 'disabled' in remark else 'unknown'}"
    elif remark == _UNSIGNED:
        text = "the request is not signed: set access_key and secret_key, or RMQKIT_ACCESS_KEY and RMQKIT_SECRET_KEY"
    elif remark == _BAD_SIGNATURE:
        text = "the signature is wrong: is it the right secret_key?"
    elif remark.startswith(_OTHERS):
        text = remark
    else:
        return None
    name = code_name(request)
    return AccessDenied(
        f"{address} refused {name}: {text}",
        user=user,
        action=name,
        resource=resource,
        code=reply.code,
        remark=remark,
        address=str(address),
    )


class FailureLog:
    """Logs the failures of a client's background work.

    A refusal by access control is logged once in `LOG_AGAIN_MS`, however many requests it ends.
    """

    def __init__(self, log: Log, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._logged_ms: dict[tuple[str, str, str], int] = {}

    def warning(self, event: str, error: Exception, **fields: Any) -> None:
        """Log a failure as `event`, or as `access-denied` if access control refused."""
        if not isinstance(error, AccessDenied):
            self._log.warning(event, **fields, error=str(error))
            return
        key = error.address, error.remark, error.action
        now_ms = self._clock.mono_ms
        if now_ms - self._logged_ms.get(key, -LOG_AGAIN_MS) >= LOG_AGAIN_MS:
            if len(self._logged_ms) >= LOGGED_MAX:
                self._logged_ms.clear()
            self._logged_ms[key] = now_ms
            self._log.warning("access-denied", **fields, error=str(error))
