"""Former names of `atomic_file`, for plug-ins that import them."""

from rmqkit.runtime.atomic_file import AtomicFile as KeptFile
from rmqkit.runtime.atomic_file import AtomicFileDamaged as KeptFileDamaged

__all__ = ["KeptFile", "KeptFileDamaged"]
