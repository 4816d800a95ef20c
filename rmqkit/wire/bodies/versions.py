"""DataVersion: which copy of a piece of metadata is newer (`remoting/.../protocol/DataVersion.java`)."""

import msgspec

from rmqkit.wire import fastjson
from rmqkit.wire.schema import Int64


class DataVersion(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """Equal when all three parts are; `timestamp` is milliseconds, `state_version` the master's epoch (0 without one)."""

    counter: Int64 = 0
    state_version: Int64 = 0
    timestamp: Int64 = 0

    def newer_than(self, other: "DataVersion") -> bool:
        """State version decides, then counter, then time (`DataVersion.compare`)."""
        mine = (self.state_version, self.counter, self.timestamp)
        return mine > (other.state_version, other.counter, other.timestamp)

    def next_version(self, now_ms: int, state_version: int = 0) -> "DataVersion":
        """The version after a change (`DataVersion.nextVersion`)."""
        return DataVersion(counter=self.counter + 1, state_version=state_version, timestamp=now_ms)

    def encode(self) -> bytes:
        return fastjson.dumps(self)

    @classmethod
    def decode(cls, data: bytes | str) -> "DataVersion":
        """Raises RemoteProtocolError."""
        return fastjson.load_as(cls, data)
