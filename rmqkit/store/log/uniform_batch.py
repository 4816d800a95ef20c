"""Uniform batches: messages that differ only in their bodies and in a part of their properties.

A producer makes the messages of a batch alike: the same flag, the same property names, unique ids
of one size, and often bodies of one size. Then all bytes between the bodies and the varying parts
are constants of the batch. The batch is stored by column, with a few calls into C per batch instead
of a dozen per message:

    step            general path, per message          uniform batch
    decode          two reads of sizes, three slices   one `iter_unpack` over the whole body
    properties      partition, look up the rest        compare columns, look up the rest once
    records         one head, one tail, three parts    one `pack` of up to 128 records
    log             one put                            one put
    queue           one unit, one arrival              units of an arithmetic progression,
                                                       one arrival with a `record_count`
    answer          one formatted id                   one call for all ids
    index (later)   one hash of the id                 hashes by column of the ids

If only the sizes of the bodies differ, decoding takes a loop, and each record gets a head of its
own and shares everything else: one `join` puts the batch together.

**The properties** of message n, as stored, are its *own part* and then `behind`. The own part ends
with the value of UNIQ_KEY:

    Java     UNIQ_KEY 7F0000…0001 | WAIT true            own part | behind
             KEYS a UNIQ_KEY 7F0000…0001 | WAIT true TAGS x
    ours     DEDUP_KEY run/0/17 TAGS x UNIQ_KEY 7F0000…0001 |

All own parts have one size and the same names at the same places, so that what holds for the names
of the first message holds for all. Values may differ, except that of TAGS: a batch has one tags
code. Everything else takes the general path, which gives the same bytes: other names or sizes, no
unique id, special properties, a CRC property per record (`enabledAppendPropCRC`). A queue of a
BatchCQ topic, or one with an extension, gets the records of the batch one by one
(`queues/batch_put.py`).

Two hard cases decide the design:

- **Ids that differ in more than the counter.** Java's ids end with the time in ms and a counter,
  four characters. A batch that is made while the millisecond changes differs in more. Therefore
  nothing assumes where ids differ: the index hashes all characters of all ids, by column.
- **A batch that meets the end of a log file.** Its records must stay in one file, all or none. The
  log rolls before it takes the first offset of the batch, as for a general batch. So offsets are
  one progression, never two, and the whole batch is one buffer of the run of its file. A failed
  write takes the whole batch back: one queue offset to restore.

An engine need not know this class. To it, a `UniformBatch` is a sequence of the messages that
`append_batch` takes anyway.

The handler decides whether a batch is uniform (`broker/handlers/messages/batch_shape.py`).
"""

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import overload

Message = tuple[int, bytes, bytes, int]


class BatchProperties(Sequence[bytes]):
    """The properties of the messages of a uniform batch, without the messages' bodies.

    The index keeps them until it has hashed the unique ids.
    """

    __slots__ = ("behind", "id_at", "is_keyed", "own", "own_size")

    def __init__(self, own: bytes, own_size: int, behind: bytes, *, id_at: int, is_keyed: bool) -> None:
        #: the own parts of all messages, end to end, each of `own_size` bytes
        self.own = own
        self.own_size = own_size
        #: what follows each own part
        self.behind = behind
        #: position of the unique id, which is the end of an own part
        self.id_at = id_at
        #: whether the own parts have the property KEYS
        self.is_keyed = is_keyed

    def __len__(self) -> int:
        return len(self.own) // self.own_size

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        at = range(len(self))[index] * self.own_size
        return self.own[at : at + self.own_size] + self.behind


class UniformBatch(Sequence[Message]):
    """The messages of a uniform batch, by column.

    As a sequence, each is (flag, body, properties, tags code), as `append_batch` takes them. `own`
    has the own part of each message's properties. `body_size` is 0 if the bodies have different
    sizes.
    """

    __slots__ = ("bodies", "body_size", "flag", "own", "properties", "tags_code")

    def __init__(
        self,
        flag: int,
        bodies: Sequence[bytes],
        body_size: int,
        own: Sequence[bytes],
        properties: BatchProperties,
        tags_code: int,
    ) -> None:
        self.flag = flag
        self.bodies = bodies
        self.body_size = body_size
        self.own = own
        self.properties = properties
        self.tags_code = tags_code

    @property
    def properties_size(self) -> int:
        """Bytes of the properties of each message."""
        return self.properties.own_size + len(self.properties.behind)

    @property
    def body_size_max(self) -> int:
        return self.body_size or max(map(len, self.bodies))

    @property
    def size(self) -> int:
        """Bytes of all bodies and properties."""
        bodies = self.body_size * len(self.bodies) if self.body_size else sum(map(len, self.bodies))
        return bodies + self.properties_size * len(self.bodies)

    def __len__(self) -> int:
        return len(self.bodies)

    def __iter__(self) -> Iterator[Message]:
        behind = self.properties.behind
        texts = [own + behind for own in self.own]
        return zip(repeat(self.flag), self.bodies, texts, repeat(self.tags_code))

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        return self.flag, self.bodies[index], self.properties[index], self.tags_code
