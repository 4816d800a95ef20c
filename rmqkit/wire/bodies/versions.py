"""DataVersion: tells which copy of a table is newer (`remoting/.../protocol/DataVersion.java`)."""

import msgspec

from rmqkit.wire import fastjson
from rmqkit.wire.schema import Int64


class DataVersion(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """The version of a metadata table. Two are equal if all three parts are.

    `timestamp` is in milliseconds; `state_version` is the master's epoch, 0 without one.
    """

    counter: Int64 = 0
    state_version: Int64 = 0
    timestamp: Int64 = 0

    def newer_than(self, other: "DataVersion") -> bool:
        """Compare the state version, then the counter, then the time (`DataVersion.compare`)."""
        mine = (self.state_version, self.counter, self.timestamp)
        return mine > (other.state_version, other.counter, other.timestamp)

    def next_version(self, now_ms: int, state_version: int = 0, *, steps: int = 1) -> "DataVersion":
        """Return the version after `steps` changes at `now_ms` (`DataVersion.nextVersion`)."""
        return DataVersion(counter=self.counter + steps, state_version=state_version, timestamp=now_ms)

    def encode(self) -> bytes:
        return fastjson.dumps(self)

    @classmethod
    def decode(cls, data: bytes | str) -> "DataVersion":
        """Return the decoded version. Raises RemoteProtocolError."""
        return fastjson.load_as(cls, data)
