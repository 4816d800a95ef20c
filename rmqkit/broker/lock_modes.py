"""The former path of `rmqkit.broker.locks`, for plug-ins that import it."""

from rmqkit.broker.locks import LOCK_MODES
from rmqkit.broker.locks.contract import NOTHING_MORE, Locked, LockMode, Loose, More

__all__ = ["LOCK_MODES", "NOTHING_MORE", "LockMode", "Locked", "Loose", "More"]
