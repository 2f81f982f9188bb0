"""Files whose bytes come slowly and in pieces: of a file system in user space (FUSE), or of pipes with names.

`Source` is for a program of its own that has one thread: it moves the program into a mount namespace of its own, so
that the mount ends with the program."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
import struct
import threading
import time
from pathlib import Path

PIECE = 1000  # bytes of an answer
_NEW_USER, _NEW_MOUNTS = 0x10000000, 0x00020000
_PRIVATE = 1 << 18 | 1 << 14
_DIES_WITH_PARENT = 1
_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _RELEASE, _FLUSH, _INIT, _INTERRUPT, _FORGET_MANY = (
    1,
    2,
    3,
    14,
    15,
    18,
    25,
    26,
    36,
    42,
)
_DIRECT = 1  # flag of an open file: no page cache, so each read is a request, and may get less than it asks for


class NotPermittedError(Exception):
    """This program may not mount a file system."""


class Source:
    """Serves files from a child process, which `stop` kills. `slow` seconds pass before each piece of a file."""

    def __init__(self, folder: Path, files: list[Path], fuse: bool) -> None:
        folder.mkdir(exist_ok=True)
        self._folder, self._fuse = folder, fuse
        self._files = {path.name: path.read_bytes() for path in files}
        self._slow = mmap.mmap(-1, 8)
        self.slow = 0.0
        if fuse:
            _own_mounts()
        self.start()

    @property
    def slow(self) -> float:
        return float(struct.unpack("d", self._slow[:8])[0])

    @slow.setter
    def slow(self, seconds: float) -> None:
        self._slow[:8] = struct.pack("d", seconds)

    def start(self) -> None:
        if self._fuse:
            device = os.open("/dev/fuse", os.O_RDWR)
            options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
            _call("mount", b"slow", os.fsencode(self._folder), b"fuse", 0, options.encode())
        else:
            for name in self._files:
                os.mkfifo(self._folder / name)
        self.server = os.fork()
        if self.server == 0:
            try:
                _call("prctl", _DIES_WITH_PARENT, signal.SIGKILL)
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                _FileSystem(self, device).serve() if self._fuse else self._feed_all()
            finally:
                os._exit(1)
        if self._fuse:
            os.close(device)

    def stop(self) -> None:
        os.kill(self.server, signal.SIGKILL)
        os.waitpid(self.server, 0)
        if self._fuse:
            _call("umount2", os.fsencode(self._folder), 2)
        else:
            for name in self._files:
                (self._folder / name).unlink()

    def _feed_all(self) -> None:
        for name in self._files:
            threading.Thread(target=self._feed, args=(name,)).start()
        threading.Event().wait()

    def _feed(self, name: str) -> None:
        path, other = self._folder / name, self._folder / f".{name}"
        while True:
            with open(path, "wb", buffering=0) as pipe:
                os.mkfifo(other)
                os.replace(other, path)  # each reader gets a pipe of its own
                data = self._files[name]
                with contextlib.suppress(BrokenPipeError):
                    for at in range(0, len(data), PIECE):
                        time.sleep(self.slow)
                        pipe.write(data[at : at + PIECE])


class _FileSystem:
    """The server of a mount: docs of the kernel, include/uapi/linux/fuse.h."""

    def __init__(self, source: Source, device: int) -> None:
        self._source, self._device = source, device
        self._names = sorted(source._files)  # file k has the node k + 2; the folder is node 1

    def serve(self) -> None:
        while True:
            try:
                request = os.read(self._device, 1 << 20)
            except OSError:  # unmounted
                return
            _, opcode, unique, node = struct.unpack_from("<IIQQ", request)
            if opcode == _READ:
                threading.Thread(target=self._read, args=(unique, node, request[40:])).start()
            elif opcode not in (_FORGET, _FORGET_MANY, _INTERRUPT):
                self._answer(unique, *self._reply(opcode, node, request[40:]))

    def _answer(self, unique: int, error: int, data: bytes = b"") -> None:
        with contextlib.suppress(OSError):  # the reader is gone
            os.write(self._device, struct.pack("<IiQ", 16 + len(data), -error, unique) + data)

    def _reply(self, opcode: int, node: int, body: bytes) -> tuple[int, bytes]:
        if opcode == _INIT:
            return 0, struct.pack("<IIIIHHIIHHI28x", 7, 31, 0, 0, 64, 48, 65536, 1, 0, 0, 0)
        if opcode == _LOOKUP:
            name = os.fsdecode(body.rstrip(b"\0"))
            if name not in self._names:
                return 2, b""  # ENOENT
            node = self._names.index(name) + 2
            return 0, struct.pack("<QQQQII", node, 0, 3600, 3600, 0, 0) + self._attributes(node)
        if opcode == _GETATTR:
            return 0, struct.pack("<QII", 3600, 0, 0) + self._attributes(node)
        if opcode == _OPEN:
            return 0, struct.pack("<QII", 0, _DIRECT, 0)
        return (0, b"") if opcode in (_FLUSH, _RELEASE) else (38, b"")  # ENOSYS

    def _attributes(self, node: int) -> bytes:
        size = 0 if node == 1 else len(self._source._files[self._names[node - 2]])
        mode = 0o40755 if node == 1 else 0o100644
        return struct.pack(
            "<QQQQQQIIIIIIIIII", node, size, 0, 1, 1, 1, 0, 0, 0, mode, 1, os.getuid(), os.getgid(), 0, 4096, 0
        )

    def _read(self, unique: int, node: int, body: bytes) -> None:
        time.sleep(self._source.slow)
        _, at, size = struct.unpack_from("<QQI", body)
        self._answer(unique, 0, self._source._files[self._names[node - 2]][at : at + min(size, PIECE)])


_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: bytes | int | None) -> None:
    if getattr(_libc, name)(*arguments) < 0:
        raise NotPermittedError(f"{name}: {os.strerror(ctypes.get_errno())}")


def _own_mounts() -> None:
    user, group = os.getuid(), os.getgid()
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise NotPermittedError("/dev/fuse cannot be opened")
    _call("unshare", _NEW_MOUNTS | (0 if user == 0 else _NEW_USER))
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _call("mount", b"none", b"/", None, _PRIVATE, None)
