"""Makes the shards in this folder and, by reading them with webdataset, wds.json: what their samples are.

Run by hand when they are to change: pip install webdataset==1.0.2; python make.py. Needs GNU tar for the sparse ones.
"""

import base64
import io
import json
import os
import pathlib
import subprocess
import tarfile
import tempfile

import webdataset
from webdataset import tariterators

HERE = pathlib.Path(__file__).parent


def picture(k, size):
    return bytes((k * 37 + j * 11 + (j >> 8)) % 256 for j in range(size))


def member(tar, name, data=b"", type=tarfile.REGTYPE, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size, info.mtime = type, link, len(data), 1
    tar.addfile(info, io.BytesIO(data))


def shards():
    pattern = str(HERE / "wds-%06d.tar")
    with webdataset.ShardWriter(pattern, maxcount=3, mtime=1, verbose=0) as sink:
        for k in range(7):
            sink.write(
                {
                    "__key__": f"{k:06d}",
                    "jpg": picture(k, 300 * k),
                    "cls": k % 3,
                    "json": {"caption": f"größer als {k}"},
                    "seg.png": picture(k + 100, 20),
                }
            )


def formats():
    long = "a-folder-of-some-length/" * 8 + "n" * 120
    for name, format in {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}.items():
        with tarfile.open(HERE / f"tarfile-{name}.tar", "w", format=format) as tar:
            member(tar, "train", type=tarfile.DIRTYPE)
            for key in ["train/0", "train/1", "./2", "p" * 60 + "/" + "q" * 60] + ([] if name == "ustar" else [long, "ordner/größe", "日本/語"]):
                member(tar, key + ".TXT", key.encode())
                member(tar, key + ".seg.bin", picture(len(key), len(key) * 10))


def quirks():
    with tarfile.open(HERE / "quirks.tar", "w") as tar:
        member(tar, "README", b"no field")
        member(tar, ".hidden", b"no key")
        member(tar, "__meta__", b"webdataset's own")
        member(tar, "__meta__/0.a", b"webdataset's own")
        member(tar, "0.a", b"first")
        member(tar, "0.b", b"")
        member(tar, "x.y/0.a", b"a folder with a dot")
        member(tar, "x.y/0.b", b"a folder with a dot, b")
        member(tar, "1.b", b"b before a")
        member(tar, "lnk.c", type=tarfile.SYMTYPE, link="1.b")
        member(tar, "1.A", b"a after b")
        member(tar, "0.a", b"the key comes back")
        member(tar, "0.b", b"the key comes back, b")
        member(tar, "0/1.a", b"in a folder named as a key")
        member(tar, "0/1.b.c", b"a longer field")
        member(tar, "0/1.b", b"1 b")
        member(tar, "2.a", b"lacks b")
        member(tar, "3.a", b"ends")
        member(tar, "3.b", b"here")


def sparse():
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "000.bin"
        with open(path, "wb") as f:
            f.write(b"head")
            f.truncate(1 << 20)
            f.seek((1 << 20) - 4096)
            f.write(b"tail")
        os.utime(path, (1, 1))
        for name, options in {
            "gnu": ["--format=gnu"],
            "pax-0.0": ["--format=posix", "--sparse-version=0.0"],
            "pax-0.1": ["--format=posix", "--sparse-version=0.1"],
            "pax-1.0": ["--format=posix", "--sparse-version=1.0"],
        }.items():
            subprocess.run(
                ["tar", "-b", "2", "--sparse", *options, "--owner=0", "--group=0", "-C", folder, "-cf", HERE / f"sparse-{name}.tar", "000.bin"],
                check=True,
            )


def read(path):
    with open(path, "rb") as stream:
        samples = list(tariterators.group_by_keys(tariterators.tar_file_expander([{"url": str(path), "stream": stream}])))
    return [{"key": s["__key__"], "fields": {k: base64.b64encode(v).decode() for k, v in s.items() if not k.startswith("__")}} for s in samples]


for make in shards, formats, quirks, sparse:
    make()
(HERE / "wds.json").write_text(
    json.dumps({p.name: read(p) for p in sorted(HERE.glob("*.tar")) if not p.name.startswith("sparse")}, indent=1, ensure_ascii=False) + "\n"
)
