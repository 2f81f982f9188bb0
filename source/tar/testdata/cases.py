"""Makes cases.json: shards that readers of tar read differently, and what both of ours say. Run it when it changes.

Tests of Go (source/tar) and of Python (python/tests/image) read cases.json. A shard is gzip in base64. `samples` are the
fields of each sample; `refused` is a part of the error instead."""

import base64
import gzip
import json
import pathlib

CASES = []


def header(name, size, kind=b"0", magic=b"ustar\x0000", prefix=b"", change=lambda block: None, mode=b"0000600\0"):
    """A header. size: a number, or the bytes of the field."""
    field = size if isinstance(size, bytes) else b"%011o\0" % size
    block = bytearray(512)
    block[:100] = name.ljust(100, b"\0")
    block[100:108], block[108:116], block[116:124] = mode, b"0000000\0", b"0000000\0"
    block[124:136], block[136:148] = field, b"00000000001\0"
    block[156:157], block[257:265] = kind, magic
    block[345 : 345 + len(prefix)] = prefix
    change(block)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def member(name, data=b"", kind=b"0", **more):
    return header(name, more.pop("size", len(data)), kind, **more) + padded(data)


def padded(data):
    return data + bytes(-len(data) % 512)


def record(key, value):
    text = b" " + key + b"=" + value + b"\n"
    n = len(text) + 1
    while len(str(n)) + len(text) != n:
        n += 1
    return str(n).encode() + text


def pax(kind=b"x", **values):
    return member(
        b"pax", b"".join(record(key.replace("_", ".").encode(), value) for key, value in values.items()), kind
    )


def case(name, shard, samples=None, refused=None):
    packed = base64.b64encode(gzip.compress(shard, mtime=0)).decode()
    entry = {"name": name, "shard": packed}
    CASES.append(entry | ({"refused": refused} if refused else {"samples": samples}))


ZERO, END = bytes(512), bytes(1024)
ONE = member(b"0.jpg", b"one") + member(b"0.cls", b"1")
TWO = member(b"1.jpg", b"two") + member(b"1.cls", b"2")
FIRST, SECOND = {"jpg": "one", "cls": "1"}, {"jpg": "two", "cls": "2"}
BOTH = [FIRST, SECOND]
JPG = [{"jpg": "one"}]
BASE256 = b"\x80" + (3).to_bytes(11, "big")

case("two zero blocks", ONE + TWO + END, BOTH)
case("one zero block", ONE + TWO + ZERO, BOTH)
case("one zero block and a part of another", ONE + TWO + ZERO + bytes(100), BOTH)
case("no end mark", ONE + TWO, refused="no end mark")
case("no end mark after zeros of a member", member(b"0.bin", bytes(512)), refused="no end mark")
case("a part of a zero block", ONE + bytes(100), refused="truncated")
case("many zero blocks", ONE + TWO + 20 * ZERO, BOTH)
case("other bytes after the mark", ONE + TWO + END + b"x" * 700, BOTH)
case("members after the mark", ONE + END + TWO + END, [FIRST])
case("members after one zero block", ONE + ZERO + TWO + END, refused="copy it again")
case("other bytes after one zero block", ONE + ZERO + b"x" * 512, refused="copy it again")
case("truncated in the data", (ONE + member(b"1.jpg", b"x" * 1000))[:-700], refused="truncated")
case("truncated in a header", (ONE + TWO)[: len(ONE) + 200], refused="truncated")
case("a wrong checksum", ONE + b"2" + TWO[1:] + END, refused="copy it again")
case("text", b"this is text" * 100, refused="tar archive")
case("no byte", b"", refused="no.tar")
case("gzip", gzip.compress(ONE + END, mtime=0), refused="compressed with gzip")
case("lz4", b"\x04\x22\x4d\x18" + ONE + END, refused="compressed with lz4")
case("compress", b"\x1f\x9d" + ONE + END, refused="compressed with compress")

case("a v7 header", member(b"0.jpg", b"one", magic=bytes(8)) + END, JPG)
case("a v7 type", member(b"0.jpg", b"one", b"\0", magic=bytes(8)) + END, JPG)
case("a v7 folder", member(b"a.b/", b"", b"\0", magic=bytes(8)) + member(b"0.jpg", b"one") + END, JPG)
case("a GNU header", member(b"0.jpg", b"one", magic=b"ustar  \0") + END, JPG)
case("an unusual magic", member(b"0.jpg", b"one", magic=b"USTAR\0xx") + END, JPG)
case("an unusual version", member(b"0.jpg", b"one", magic=b"ustar\x00  ") + END, JPG)
case("a prefix", member(b"0.jpg", b"one", prefix=b"a/b") + member(b"0.cls", b"1", prefix=b"a/b") + END, [FIRST])
case(
    "a prefix of two samples",
    member(b"0.jpg", b"one", prefix=b"a") + member(b"0.jpg", b"two", prefix=b"b") + END,
    [{"jpg": "one"}, {"jpg": "two"}],
)
case(
    "times where a prefix lies, of GNU",
    member(b"0.jpg", b"one", magic=b"ustar  \0", prefix=b"00000000001\x0000000000001\0")
    + member(b"0.cls", b"1", magic=b"ustar  \0")
    + END,
    [FIRST],
)
case("a contiguous file", member(b"0.jpg", b"one", b"7") + END, JPG)
case("a size in base 256", member(b"0.jpg", b"one", size=BASE256) + END, JPG)
case("a negative size in base 256", ONE + member(b"1.jpg", b"", size=b"\xff" * 12) + END, refused="copy it again")
case("a size beyond 63 bits", ONE + member(b"1.jpg", b"", size=b"\x80" + b"\xff" * 11) + END, refused="copy it again")
case("a size with spaces", member(b"0.jpg", b"one", size=b"          3 ") + END, JPG)
case("a size with underscores", ONE + member(b"1.jpg", b"one", size=b"0000000_003\0") + END, refused="copy it again")
case("a size with a sign", ONE + member(b"1.jpg", b"one", size=b"+0000000003\0") + END, refused="copy it again")
case("no size", member(b"0.jpg", b"", size=bytes(12)) + END, [{"jpg": ""}])
case("a mode that is no number", ONE + member(b"1.jpg", b"one", mode=b"rw-------"[:8]) + END, refused="copy it again")
case("a size of 4 GiB", member(b"0.jpg", b"", size=b"%011o\0" % (1 << 32)) + END, refused="no.tar")

case("a PAX path", pax(path=b"folder/0.jpg") + member(b"x", b"one") + END, JPG)
case("an empty PAX path", pax(path=b"") + member(b"0.jpg", b"one") + END, JPG)
case("a PAX path for one member", pax(path=b"0.jpg") + member(b"x", b"one") + member(b"0.cls", b"1") + END, [FIRST])
case("a PAX size", pax(size=b"3") + member(b"0.jpg", b"one", size=0) + member(b"0.cls", b"1") + END, [FIRST])
case("a PAX size with spaces", ONE + pax(size=b" 3") + member(b"1.jpg", b"one") + END, refused="copy it again")
case("a negative PAX size", ONE + pax(size=b"-3") + member(b"1.jpg", b"one") + END, refused="copy it again")
case("a PAX size of 70 bits", ONE + pax(size=b"9" * 21) + member(b"1.jpg", b"one") + END, refused="copy it again")
case("a PAX time that is none", ONE + pax(mtime=b"today") + member(b"1.jpg", b"one") + END, refused="copy it again")
case("a PAX time", pax(mtime=b"1700000000.123456789", comment=b"x") + member(b"0.jpg", b"one") + END, JPG)
case(
    "a PAX record without an end",
    ONE + member(b"pax", b"12 path=0.jp", b"x") + member(b"x", b"one") + END,
    refused="copy it again",
)
case(
    "a PAX record of the length 0",
    ONE + member(b"pax", b"0 path=0.jpg\n", b"x") + member(b"x", b"one") + END,
    refused="copy it again",
)
case("a PAX path with a NUL", ONE + pax(path=b"1.jpg\0x") + member(b"x", b"one") + END, refused="copy it again")
case(
    "PAX records of 2 MiB",
    ONE + pax(comment=b"x" * (2 << 20)) + member(b"1.jpg", b"one") + END,
    refused="copy it again",
)
case("PAX records at the end", ONE + pax(path=b"1.jpg") + END, refused="copy it again")
case("a global comment", pax(b"g", comment=b"0123abcd") + ONE + TWO + END, BOTH)
case("a global PAX path", pax(b"g", path=b"0.jpg") + ONE + END, refused="global PAX header")
case("a global PAX size", ONE + pax(b"g", size=b"7") + TWO + END, refused="global PAX header")
case("a GNU long name", member(b"././@LongLink", b"k" * 200 + b".jpg\0", b"L") + member(b"k" * 100, b"one") + END, JPG)
case(
    "a GNU long name and a PAX path",
    pax(path=b"1.png") + member(b"L", b"0.jpg\0", b"L") + member(b"x", b"one") + END,
    JPG,
)
case(
    "a GNU long link",
    member(b"K", b"target\0", b"K") + member(b"l.jpg", b"", b"2") + member(b"0.jpg", b"one") + END,
    JPG,
)

case(
    "links, folders, devices and others",
    member(b"l.jpg", b"", b"1")
    + member(b"s.jpg", b"", b"2")
    + member(b"c.jpg", b"", b"3")
    + member(b"d.jpg", b"", b"5")
    + member(b"f.jpg", b"", b"6")
    + member(b"v.jpg", b"", b"V")
    + ONE
    + END,
    [FIRST],
)
case("a link with a size", member(b"l.jpg", b"", b"1", size=700) + ONE + END, [FIRST])
case("an unknown type with data", member(b"u.jpg", b"data" * 200, b"Z") + ONE + END, [FIRST])
case("a sparse file of GNU", ONE + member(b"1.jpg", b"", b"S", magic=b"ustar  \0") + END, refused="sparse")
case(
    "a sparse file of PAX",
    ONE + pax(GNU_sparse_major=b"1", GNU_sparse_minor=b"0") + member(b"1.jpg", b"0\n") + END,
    refused="sparse",
)

case(
    "names without a field",
    member(b"README", b"x") + member(b".hidden", b"x") + member(b"a.b/.x", b"") + member(b"1.", b"x") + ONE + END,
    [FIRST],
)
case("members of webdataset", member(b"__index__", b"x") + member(b"__a__/0.jpg", b"x") + ONE + END, [FIRST])
case("dots in folders", member(b"a.b/0.jpg", b"one") + member(b"a.b/0.cls", b"1") + END, [FIRST])
case("two dots in a name", member(b"0.seg.png", b"one") + END, [{"seg.png": "one"}])
case("names with ./", member(b"./0.jpg", b"one") + member(b"./0.cls", b"1") + END, [FIRST])
case(
    "a key with and without ./",
    member(b"./0.jpg", b"one") + member(b"0.jpg", b"two") + END,
    [{"jpg": "one"}, {"jpg": "two"}],
)
case("extensions of mixed case", member(b"0.JpG", b"one") + member(b"0.CLS", b"1") + END, [FIRST])
case("extensions beyond ASCII", member("0.ÉΣİ".encode(), b"one") + END, [{"éσi": "one"}])
case("a field twice", ONE + member(b"0.JPG", b"two") + END, refused="twice")
case("a key again later", ONE + TWO + member(b"0.jpg", b"one") + member(b"0.cls", b"1") + END, [FIRST, SECOND, FIRST])
case("names that are not UTF-8", member(b"\xff.jpg", b"one") + member(b"\xff.cls", b"1") + END, [FIRST])
case("fields that are not UTF-8", member(b"0.A\xff", b"x") + member(b"0.jpg", b"one") + END, JPG)
case("a field of 256 bytes", pax(path=b"0." + b"x" * 256) + member(b"x", b"one") + member(b"0.jpg", b"one") + END, JPG)
case("empty files", member(b"0.jpg") + member(b"0.cls") + END, [{"jpg": "", "cls": ""}])

text = json.dumps(CASES, indent=1, ensure_ascii=False)
(pathlib.Path(__file__).parent / "cases.json").write_text(text + "\n")
