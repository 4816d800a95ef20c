"""RocketMQ's formats as pure functions: bytes in, values out, and back.

Nothing here uses a socket, a file or a clock.

- Remoting: `remoting` (frames and headers), `schema` and `schemas` (typed extFields), `bodies`
  (JSON bodies) on top of `fastjson`, `codes`.
- Storage: `record` (the message record), `batch`, `properties`, `javahash`, `hosts`, `msgid`.
- Replication: `ha`.
- Client side: `uniqueids`, `trace`, `inflate`.

A decoder returns a value, returns None if it needs more bytes, or raises RemoteProtocolError. Bytes
that should be a record raise CorruptRecord. Each module names the Java sources that define its
format.
"""
