"""Generates invalid frames from a seed: damaged real traffic, and frames that are wrong on purpose.

`Mutator(seed).frame()` returns the bytes of one frame; the same seed gives the same frames. The
sources are Apache's own frames (`tests/wire/golden`). The mutations are:

- bytes flipped, removed or duplicated; wrong lengths and header sizes; two frames spliced,
- another codec mark,
- header fields missing, duplicated, of another type, out of range, not UTF-8 or deeply nested,
- requests of every known code with the fields of another code,
- bodies that are damaged or belong to another request.
"""

import json
import random
import struct
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from rmqkit.wire.codes import RequestCode

GOLDEN = Path(__file__).parent.parent / "wire" / "golden"
CODES = [int(code) for code in RequestCode]

NAMES = (
    "topic",
    "queueId",
    "consumerGroup",
    "opaque",
    "offset",
    "namespace",
    "key",
    "value",
    "brokerName",
    "brokerId",
    "b",
    "e",
)
#: values as JSON text, to be inserted after a key
EVIL = (
    b"null",
    b"true",
    b"-1",
    b"NaN",
    b"Infinity",
    b"1e999",
    b"2147483648",
    b"-9223372036854775809",
    b"99999999999999999999999999",
    b"0.5",
    b'""',
    b'" "',
    b'"-1"',
    b'"NaN"',
    b'"9223372036854775807"',
    b'"-9223372036854775808"',
    b'"4294967296"',
    b'"1_000"',
    b'"\xc2\xb2"',
    b'"../../../etc/passwd"',
    b'"/absolute"',
    b'"%RETRY%"',
    b'"%RETRY%nobody"',
    b'"%DLQ%"',
    b'"TBW102"',
    b'"SCHEDULE_TOPIC_XXXX"',
    b'"RMQ_SYS_TRANS_HALF_TOPIC"',
    b'"a|b%c"',
    b'"\\u0000"',
    b'"\\ud800"',
    b'"\xff\xfe"',
    b'"\xed\xa0\x80"',
    b'"' + b"x" * 300 + b'"',
    b'"' + b"y" * 40_000 + b'"',
    b"[]",
    b"{}",
    b'{"@type":"java.net.URL","val":"http://127.0.0.1"}',
    b"[" * 2000,
    b"[" * 500 + b"]" * 500,
    b'{"a":' * 500 + b"1" + b"}" * 500,
)
BODIES = (
    b"",
    b"{}",
    b"[]",
    b"null",
    b"{" * 3000,
    b'{"a":' * 3000,
    b'{"offsetTable":{"T@g":{"0":-1,"x":1e999}}}',
    b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"../x":{"topicName":"../x"}}},"filterServerList":null}',
    b'{"clientID":"","consumerDataSet":[null],"producerDataSet":[{}]}',
    b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"T1","subString":"a || "}]}]}',
    b'{"mqSet":[{"topic":"T1","brokerName":"","queueId":-5}],"clientId":"c","consumerGroup":"g"}',
    b"\x78\x9c" + b"\x00" * 20,
    zlib.compress(b"\x00\x00\x00\x05hello" + b"\xff" * 50),
    zlib.compress(bytes(200_000), 9),
    b"brokerPermission=nonsense\nflushDiskType=SYNC_FLUSH\n",
    b"\xff" * 64,
)
STRANGERS = (
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x11" * 64,
    b"SSH-2.0-OpenSSH_9.6\r\n",
    b"*1\r\n$4\r\nPING\r\n",
    b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n",
    b"\x0d\x0a\x0d\x0a\x00\x0d\x0a\x51\x55\x49\x54\x0a\x21\x11\x00\x0c" + b"\x01" * 12,
    b"\x00" * 32,
    b"\xff" * 32,
)


@cache
def golden_frames() -> tuple[bytes, ...]:
    return tuple(path.read_bytes() for path in sorted(GOLDEN.glob("*.bin")))


@cache
def golden_requests() -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    """Return (JSON headers, bodies) of Apache's requests."""
    headers, bodies = [], []
    for path in sorted(GOLDEN.glob("*.request.bin")):
        raw = path.read_bytes()
        size = int.from_bytes(raw[5:8], "big")
        bodies.append(raw[8 + size :])
        if raw[4] == 0:
            headers.append(raw[8 : 8 + size])
    return tuple(headers), tuple(bodies)


def wrapped(header: bytes, body: bytes = b"", codec: int = 0) -> bytes:
    return struct.pack(">iI", 4 + len(header) + len(body), codec << 24 | len(header)) + header + body


class Mutator:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._ways: list[Callable[[], bytes]] = [
            self.flipped,
            self.flipped,
            self.cut,
            self.lying,
            self.spliced,
            self.doubled_fields,
            self.evil_field,
            self.evil_field,
            self.evil_field,
            self.other_code,
            self.other_code,
            self.built,
            self.binary,
            self.other_body,
            self.other_body,
            self.stranger,
        ]

    def frame(self) -> bytes:
        return self.random.choice(self._ways)()

    def chunks(self, data: bytes) -> list[bytes]:
        """Return the data in one piece, or cut at random."""
        pick = self.random
        if pick.random() < 0.6 or len(data) < 2:
            return [data]
        cuts = sorted(pick.sample(range(1, len(data)), min(len(data) - 1, pick.randint(1, 4))))
        return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]

    # --- damaged

    def flipped(self) -> bytes:
        data = bytearray(self.random.choice(golden_frames()))
        for _ in range(self.random.randint(1, 6)):
            data[self.random.randrange(len(data))] = self.random.randrange(256)
        return bytes(data)

    def cut(self) -> bytes:
        """Remove a part; the length field matches the rest."""
        data = self.random.choice(golden_frames())
        start = self.random.randrange(8, len(data))
        data = data[:start] + data[start + self.random.randint(1, 40) :]
        return (len(data) - 4).to_bytes(4, "big") + data[4:]

    def lying(self) -> bytes:
        data = bytearray(self.random.choice(golden_frames()))
        lie = self.random.choice((-(2**31), -1, 0, 3, 4, 5, len(data), len(data) - 5, 2**24, 2**24 + 1, 2**31 - 1))
        if self.random.random() < 0.5:
            struct.pack_into(">i", data, 0, lie)
        else:
            struct.pack_into(">I", data, 4, lie & 0xFFFFFFFF)
        return bytes(data)

    def spliced(self) -> bytes:
        one, other = self.random.choice(golden_frames()), self.random.choice(golden_frames())
        return one[: self.random.randrange(len(one))] + other[self.random.randrange(len(other)) :]

    def stranger(self) -> bytes:
        if self.random.random() < 0.3:
            return self.random.randbytes(self.random.randint(1, 80))
        return self.random.choice(STRANGERS)

    # --- built

    def doubled_fields(self) -> bytes:
        header = self._header()
        name = self.random.choice(NAMES).encode()
        field = b'"%b":%b,' % (name, self.random.choice(EVIL))
        at = header.find(b'"extFields":{') + 13
        header = header[:at] + field + field + header[at:] if at > 12 else header[:1] + field + field + header[1:]
        return wrapped(header, self._body())

    def evil_field(self) -> bytes:
        """Replace one value of a real request, or omit its field."""
        told: dict[str, Any] = json.loads(self._header())
        ext = told.get("extFields")
        inside = ext if isinstance(ext, dict) and ext and self.random.random() < 0.8 else told
        name = self.random.choice(sorted(inside))
        if self.random.random() < 0.15:
            del inside[name]
            header = json.dumps(told).encode()
        else:
            inside[name] = "@@"
            header = json.dumps(told, separators=(",", ":")).encode().replace(b'"@@"', self.random.choice(EVIL), 1)
        return wrapped(header, self._body())

    def other_code(self) -> bytes:
        """Give a request another code and flag, sometimes the fields of 1 to 4 other requests."""
        told: dict[str, Any] = json.loads(self._header())
        told["code"] = self.random.choice(CODES) if self.random.random() < 0.9 else self.random.randint(-5, 5000)
        told["flag"] = self.random.choice((0, 0, 0, 0, 2, 1, 3, -1, 2**31 - 1))
        if self.random.random() < 0.5:
            told["extFields"] = told.get("extFields") or {}
            for _ in range(self.random.randint(1, 4)):
                other = json.loads(self._header()).get("extFields")
                told["extFields"].update(other or {})
        return wrapped(json.dumps(told).encode(), self._body())

    def built(self) -> bytes:
        """Build a header from scratch."""
        evil = self.random.choice(EVIL)
        code = self.random.choice(CODES)
        header = self.random.choice(
            (
                b'{"code":%d,"extFields":%b,"flag":0,"language":"JAVA","opaque":1,"version":479}' % (code, evil),
                b'{"code":%b,"flag":0,"opaque":1}' % evil,
                b'{"code":%d,"flag":0,"opaque":%b}' % (code, evil),
                b'{"code":%d,"language":%b,"flag":0,"opaque":1}' % (code, evil),
                b'{"code":%d,"version":%b,"flag":0,"opaque":1}' % (code, evil),
                b'{"opaque":1,"flag":0,"code":%d}' % code,
                evil,
                b"",
            )
        )
        return wrapped(header, self._body(), self.random.choice((0, 0, 0, 1, 2, 255)))

    def binary(self) -> bytes:
        """Build a ROCKETMQ header, some of whose sizes may be wrong.

        It has code, language, version, opaque, flag, remark and extFields.
        """
        pick = self.random
        fields = b""
        for _ in range(pick.randint(0, 6)):
            name = pick.choice(NAMES).encode()
            value = pick.choice(EVIL).strip(b'"')[:200]
            lie = pick.choice((0, 0, 0, 0, 1, -1, 1000))
            fields += struct.pack(">H", max(0, len(name) + lie)) + name
            fields += struct.pack(">i", len(value) if pick.random() < 0.9 else pick.choice((-1, 2**31 - 1))) + value
        size = len(fields) if pick.random() < 0.8 else pick.choice((-1, 0, 3, 2**31 - 1))
        remark = pick.choice((0, 0, 0, -1, 2**31 - 1))
        head = struct.pack(
            ">Hbhii", pick.choice(CODES) & 0xFFFF, pick.choice((0, 12, 127, -1)), 479, 7, pick.choice((0, 2, 1))
        )
        return wrapped(head + struct.pack(">i", remark) + struct.pack(">i", size) + fields, self._body(), 1)

    def other_body(self) -> bytes:
        return wrapped(self._header(), self._body(evil=0.7))

    def _header(self) -> bytes:
        return self.random.choice(golden_requests()[0])

    def _body(self, evil: float = 0.3) -> bytes:
        pick = self.random
        if pick.random() < evil:
            return pick.choice(BODIES)
        body = bytearray(pick.choice(golden_requests()[1]))
        if body and pick.random() < 0.5:
            body[pick.randrange(len(body))] = pick.randrange(256)
        return bytes(body)
