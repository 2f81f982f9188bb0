"""Headers with a valid checksum whose fields say anything, and a server that sends anything: neither ends the process,
keeps a call waiting, or makes an error that is none of the library's. Go and C have the same tests (cache/hostile_test.go,
client/hostile_test.go, cclient/ctest/hostile.c, cclient/ctest/fetch.c)."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest
from helpers import python

COMMON = """
    import array, os, random, re, socket, struct, sys, threading
    from pathlib import Path
    import numpy as np
    from stocached import Cache, StocachedError

    directory, header, rng = sys.argv[1], sys.argv[2], random.Random(int(sys.argv[3]))
    defined = re.findall(r"#define STOC_(\\w+) UINT64_C\\((\\d+)\\)", Path(header).read_text())
    offset = {name: int(value) for name, value in defined}

    def hostile(was, bits):
        part = rng.randrange(0, bits, 8)
        return rng.choice([0, 1, -1, 1 << bits - 1, was + 1, was - 1, was ^ 1 << rng.randrange(bits), rng.getrandbits(bits),
                           was & ~(0xFF << part), was | 0xFF << part]) & (1 << bits) - 1

    def attempt(call):
        try:
            return call()
        except StocachedError:
            return None
"""

HEADERS = """
    table = []
    for k in range(256):
        for _ in range(8):
            k = k >> 1 ^ (0x82F63B78 if k & 1 else 0)
        table.append(k)

    def sealed(page):
        crc, at = 0xFFFFFFFF, offset["HEADER_CRC"]
        page[at:at + 4] = bytes(4)
        for byte in page:
            crc = crc >> 8 ^ table[(crc ^ byte) & 255]
        struct.pack_into("<I", page, at, crc ^ 0xFFFFFFFF)
        return page

    options = eval(sys.argv[4])
    cache = Cache.create("hostile", dir=directory, clients=4, fingerprint="print", **options)
    value = np.ones((5, 3), np.float32) if cache.variable else np.zeros(1000, np.uint8)
    for i in range(cache.samples):
        cache.put(i, value)
    image = Path(directory, "hostile").read_bytes()
    numbers = [*range(0, offset["HEADER_FINGERPRINT"], 8),
               *range(offset["HEADER_FIELDS"], offset["HEADER_FIELDS"] + offset["FIELD_BYTES"], 8)]
    texts = [*range(offset["HEADER_FINGERPRINT"], offset["HEADER_FIELDS"], 8)]
    accepted = 0
    for at in numbers * 4 + rng.sample(texts, 40):
        page = bytearray(image[:4096])
        word = hostile(struct.unpack_from("<Q", page, at)[0], 64)
        struct.pack_into("<Q", page, at, word)
        print(f"word {at} becomes {word:#x}", flush=True)
        copy = Path(directory, "copy")
        copy.write_bytes(sealed(page) + image[4096:])
        with open(copy, "r+b") as file:
            os.truncate(file.fileno(), len(image))
        other = attempt(lambda: Cache.attach(copy))
        if other is None:
            continue
        accepted += 1
        with other:
            repr(other)
            for call in (lambda: other.get(0), lambda: other.get(0, copy=True), lambda: other.gather([0, 1]),
                         lambda: other.put(1, value, overwrite=True), lambda: other.get_or_load(0, lambda _: value),
                         lambda: [other.fields, other.name, other.fingerprint, other.path], other.states, other.costs,
                         other.verify, other.stats, other.recover, lambda: other.clear(timeout=0.01)):
                attempt(call)
        copy.unlink(missing_ok=True)
    assert accepted > 0, "uuid and time may have any value"
    print("sound")
"""

SERVER = """
    N = 4
    os.environ["STOCACHED_SOCKETS_DIR"] = directory
    cache = Cache.create("made", dir=directory, samples=N, sample_bytes=1000)
    fd = os.open(os.path.join(directory, "made"), os.O_RDWR)
    uuid = os.pread(fd, 16, offset["HEADER_UUID"])

    def frame(kind, request, body):
        return struct.pack("<IHHQ", len(body), kind, 0, request) + body

    good = {
        "WELCOME": frame(2, 1, struct.pack("<HHI", 1, 0, 40) + bytes(16)),
        "ATTACHED": frame(4, 2, struct.pack("<II", 7, 0) + uuid),
        "answer": b"".join(frame(6, 3, struct.pack("<II", k, 0) + bytes(1000)) for k in range(2)) + frame(7, 3, bytes(8)),
        "failures": frame(7, 3, struct.pack("<IIIHH", 2, 0, 0, 7, 2) + b"no" + struct.pack("<IHH", 1, 12, 1) + b"x"),
    }
    says, gift = dict(good), fd

    def serve(talk):
        with talk:
            talk.recv(1 << 16)  # HELLO and ATTACH
            talk.sendall(says["WELCOME"])
            if says["ATTACHED"]:
                talk.sendmsg([says["ATTACHED"]], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [gift]))])
            if talk.recv(1 << 16):
                talk.sendall(says["answer"])
                talk.recv(1 << 16)

    def quietly(talk):
        try:
            serve(talk)
        except OSError:
            pass  # the client has hung up

    def accept():
        while True:
            threading.Thread(target=quietly, args=[listener.accept()[0]], daemon=True).start()

    os.chmod(directory, 0o700)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.path.join(directory, "data.sock"))
    listener.listen(64)
    threading.Thread(target=accept, daemon=True).start()

    def use(seconds=0.3):
        with Cache.attach("served-hostile", timeout=seconds) as served:
            return served.fetch([0, 1], timeout=seconds)

    assert use(30) is not None  # the machine may be busy
    frames = [(name, name, at) for name in good if name != "failures" for at in range(len(good[name]))]
    frames += [("answer", "failures", at) for at in range(len(good["failures"]))]
    head = [one for one in frames if one[1] != "answer" or one[2] < 40 or one[2] > len(good["answer"]) - 24]
    for name, source, at in head:
        changed = bytearray(good[source])
        changed[at] = hostile(changed[at], 8)
        says = dict(good, **{name: bytes(changed)})
        print(f"{source}: byte {at} becomes {changed[at]:#x}", flush=True)
        attempt(use)
    for name, source, at in rng.sample(frames, 3):  # a server that is silent
        says = dict(good, **{name: good[source][:at]})
        print(f"{source}: cut at {at}", flush=True)
        attempt(use)
    says = dict(good)
    others = {"directory": os.open("/", os.O_RDONLY), "device": os.open("/dev/zero", os.O_RDWR), "pipe": os.pipe()[0],
              "proc": os.open("/proc/self/stat", os.O_RDONLY), "path": os.open("/", os.O_PATH),
              "event": os.eventfd(0), "socket": socket.socket(socket.AF_UNIX).detach(), "empty": os.memfd_create("x")}
    for name, gift in others.items():
        print(f"a descriptor of a {name}", flush=True)
        assert attempt(use) is None
    gift = fd
    assert use(30) is not None  # the machine may be busy
    print("sound")
"""

KINDS = {
    "first-come": {"samples": 8, "sample_bytes": 1000, "slots": 8},
    "lru": {"samples": 8, "sample_bytes": 1000, "slots": 4, "policy": "lru"},
    "arena": {
        "samples": 8,
        "shape": (None, 3),
        "dtype": "float32",
        "variable": True,
        "sample_bytes": 1000,
        "size": 4 << 20,
    },
}


def check(program: str, *arguments: object) -> None:
    header = Path(__file__).parents[3] / "cclient/stocached_layout.h"
    seed = random.randrange(1 << 30)
    with tempfile.TemporaryDirectory(prefix="stocached-test-", dir="/dev/shm") as directory:
        result = python(COMMON + program, directory, header, seed, *arguments, check=False)
    lines = result.stdout.splitlines()
    assert (result.returncode, lines[-1:]) == (0, ["sound"]), f"seed {seed}: {lines[-1:]}, {result.stderr}"


@pytest.mark.parametrize("kind", KINDS)
def test_no_header_ends_a_process(kind: str) -> None:
    check(HEADERS, KINDS[kind])


def test_no_server_ends_a_process() -> None:
    check(SERVER)
