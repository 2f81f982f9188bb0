"""Fingerprints derived from datasets and transforms: which of them differ, which do not, and that
every process derives the same."""

from __future__ import annotations

import collections
import dataclasses
import importlib.util
import io
import os
import shutil
import subprocess
import sys
import tarfile
import types
import zipfile
from pathlib import Path

import numpy as np
import pytest
from processes import in_child
from transform_kinds import Scale, digest, others, pairs, twins, without_digest

from stocached import Cache, FingerprintError, Loader, Pipe, image, source
from stocached._checks import derived_fingerprint, identity
from stocached._checks.code_names import values_of
from stocached._checks.derived_fingerprint import Derived, derive
from stocached._checks.identity import NoDigestError
from stocached._common import once_per_machine

DATA, CODE = "the data of the dataset", "the code of the dataset or of its transform"

# ------------------------------------------------------------ transforms


@pytest.mark.parametrize("name", pairs)
def test_transforms_that_do_something_else_differ(name):
    a, b = pairs[name]
    assert digest(a) == digest(a)
    assert digest(a) != digest(b)


@pytest.mark.parametrize("name", twins)
def test_transforms_that_do_the_same_do_not(name):
    a, b = twins[name]
    assert digest(a) == digest(b)


@pytest.mark.parametrize("name", without_digest())
def test_what_nothing_can_be_told_of(name):
    with pytest.raises(NoDigestError):
        digest(without_digest()[name])


def test_digests_are_the_same_in_every_process():
    here = "".join(f"{name} {digest(a)} {digest(b)}\n" for table in (pairs, twins) for name, (a, b) in table.items())
    here += "".join(f"{name} {digest(one)}\n" for name, one in others.items())
    for seed in ("0", "1"):
        program = [sys.executable, Path(__file__).parents[1] / "transform_kinds.py"]
        done = subprocess.run(
            program, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        )
        assert done.stdout == here


# ------------------------------------------------------------ data


class Pixels:
    """Arrays in memory."""

    def __init__(self, transform=None, changed=()):
        self.images, self.transform = np.arange(1000 * 12, dtype=np.int64).reshape(1000, 3, 4), transform
        self.labels = list(range(1000))
        for index in changed:
            self.images[index, 1, 2] += 1
        self.loads = 0  # the number of loads must not matter

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        self.loads += 1
        image = self.images[index] if self.transform is None else self.transform(self.images[index])
        return image, self.labels[index]


class Around:
    def __init__(self, dataset, transform=None, **more):
        self.dataset, self.transform = dataset, transform
        self.__dict__.update(more)

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        image, label = self.dataset[index]
        return (image if self.transform is None else self.transform(image)), label


class Files:
    """A folder of files, listed like torchvision's datasets."""

    def __init__(self, root, transform=None):
        self.root, self.transform = str(root), transform
        self.samples = [(str(path), int(path.parent.name)) for path in sorted(Path(root).glob("*/*"))]
        self.imgs = self.samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        path, label = self.samples[index]
        data = np.frombuffer(Path(path).read_bytes(), np.uint8)
        return (data if self.transform is None else self.transform(data)), label


@pytest.fixture
def root(tmp_path):
    for k in range(40):
        path = tmp_path / "data" / str(k % 4) / f"{k}.raw"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([k]) * 100)
    return tmp_path / "data"


def whole(derived):
    return "?" not in str(derived) and not derived.sampled


def test_arrays_and_what_is_around_them_are_told():
    for dataset in (
        Pixels(),
        Around(Pixels(), np.sqrt),
        [np.zeros(3), np.ones(3)],
        np.zeros((5, 3)),
        range(7),
        list(range(100)),
        [(np.zeros(2), 1)] * 3,
    ):
        assert whole(derive(dataset)), (dataset, derive(dataset))
        assert derive(dataset) == derive(dataset)
    assert derive(Pixels()).data != derive(Pixels(changed=[999])).data
    assert derive(Around(Pixels())).data != derive(Around(Pixels(changed=[0]))).data
    of_equal_bytes = [np.arange(6), np.arange(6, dtype=np.uint64), np.arange(6).reshape(2, 3)]
    assert len({derive(array).data for array in of_equal_bytes}) == 3
    masked = [np.ma.array(np.arange(6), mask=np.arange(6) == k) for k in range(2)]
    masked.append(np.ma.array(np.arange(6) + 1, mask=np.arange(6) == 1))
    assert len({derive(array).data for array in masked}) == 3
    assert derive(Pixels(Scale(2))).code != derive(Pixels(Scale(3))).code
    assert derive(Around(Pixels(Scale(2)), Scale(3))).code != derive(Around(Pixels(Scale(3)), Scale(2))).code


class Cropped(Around):
    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        return image[: self.size], label


class Trimmed(Around):
    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        return image[-self.size :], label


@pytest.mark.parametrize(
    ("other", "what"),
    [(Cropped(Pixels(), size=2), DATA), (Trimmed(Pixels(), size=1), CODE)],
    ids=["attributes", "code"],
)
def test_attributes_and_code_of_datasets_count(other, what):
    assert derive(Around(Pixels(), epoch=1)) == derive(Around(Pixels(), epoch=2))  # no code uses it
    a, b = derive(Cropped(Pixels(), size=1)), derive(other)
    assert (a.changed(b), a.certain(b), whole(a)) == (what, False, True)


def test_datasets_that_do_not_say_where_samples_come_from_are_not_told():
    class Made:
        def __len__(self):
            return 10

        def __getitem__(self, index):
            return index * 2

    class Reads(Pixels):
        """Has arrays, and a file whose content is unknown."""

        def __init__(self):
            super().__init__()
            self.path = "/proc/self/exe"

        def __getitem__(self, index):
            return Path(self.path).read_bytes()[index]

    class Handle(Pixels):
        def __init__(self):
            super().__init__()
            self.file = file

        def __getitem__(self, index):
            return self.file.read(index)

    assert derive(Made()).data.endswith("?")
    assert derive(Made()).reasons == ("data: Made does not say where its samples come from",)
    assert derive(Reads()).reasons == ("data: it names /proc/self/exe, which may be read",)
    with open(os.devnull) as file:
        assert derive(Handle()).reasons == ("data: its file holds a _io.TextIOWrapper",)
        assert derive(Pixels(Scale(file))).reasons == ("code: its transform holds a _io.TextIOWrapper",)
        assert not derive(Pixels(Scale(file))).data.endswith("?")


def test_a_dataset_may_name_itself():
    class Named:
        def __init__(self, version, transform=None):
            self.version, self.transform = version, transform

        def __len__(self):
            return 3

        def __getitem__(self, index):
            return self.transform(index)

        def fingerprint(self):
            return f"named-{self.version}"

    assert whole(derive(Named(1, Scale(2))))
    assert derive(Named(1, Scale(2))).changed(derive(Named(2, Scale(2)))) == DATA
    assert derive(Named(1, Scale(2))).changed(derive(Named(1, Scale(3)))) == CODE
    assert derive(Around(Named(1))).changed(derive(Around(Named(2)))) == DATA


def test_an_attribute_that_raises_ends_nothing():
    class Broken:
        @property
        def fingerprint(self):
            raise RuntimeError("not yet")

    assert derive(Broken()).reasons[0] == "data: RuntimeError: not yet"


def test_folders(root):
    here = derive(Files(root))
    assert "?" not in str(here)
    assert here.sampled  # a dataset of the program may read files that it does not list
    assert derive(Files(root)) == here
    copied = shutil.copytree(root, root.parent / "elsewhere", copy_function=shutil.copyfile)
    there = derive(Files(copied))
    # times of files in another folder, and the folder's name, are hints
    assert (there.changed(here), there.certain(here), there.data) == (None, False, here.data)
    os.utime(root / "3" / "3.raw", (1, 1))
    assert derive(Files(root)).changed(here) == DATA
    (root / "0" / "0.raw").write_bytes(b"longer" * 100)
    assert derive(Files(root)).changed(here) == DATA
    (copied / "1" / "1.raw").rename(copied / "1" / "2.raw")
    assert derive(Files(copied)).changed(here) == DATA
    (copied / "1" / "2.raw").unlink()
    assert derive(Files(copied)).changed(here) == DATA


def test_at_most_10000_files_are_looked_at(tmp_path, monkeypatch):
    path = tmp_path / "one.raw"
    path.write_bytes(b"x")
    dataset = Files(tmp_path)
    dataset.samples = dataset.imgs = [(str(path), 0)] * 25_001
    seen = collections.Counter()
    real = os.stat
    monkeypatch.setattr(
        derived_fingerprint.os,
        "stat",
        lambda name, *more, **settings: seen.update([str(name)]) or real(name, *more, **settings),
    )
    derive(dataset)
    assert seen[str(path)] <= 10_000 + 2  # plus one check whether it is a file


def test_modules_whose_attributes_raise(monkeypatch):
    """As a module with optional parts does for what is not installed."""

    def missing(name):
        raise ModuleNotFoundError(f"{name} needs more-itertools")

    module = types.ModuleType("optional")
    module.__file__, module.__getattr__ = __file__, missing
    monkeypatch.setitem(sys.modules, "optional", module)
    space = {"optional": module}
    exec("def late(x):\n    return optional.missing(x)", space)
    assert "?" not in str(derive(Pixels(transform=space["late"])))


USES = {
    "a module of a package that loads it late": ("import late", "late.sub.scale(x)"),
    "a function of a package that loads it late": ("import late", "late.scale(x)"),
    "a value of such a package": ("import late", "late.FACTOR * x"),
    "a module that LazyLoader loads": ("late = lazily('late.sub')", "late.scale(x)"),
    "an import": ("", "__import__('late').sub.scale(x)"),
    "a module that a function imports": ("", "scale(x)", "from late.sub import scale"),
    "a module that a function imports from a package": ("", "sub.scale(x)", "from late import sub"),
    "a module that a function imports by dots": ("", "sub.scale(x)", "from . import sub"),
}


def lazily(name):
    spec = importlib.util.find_spec(name)
    spec.loader = importlib.util.LazyLoader(spec.loader)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("use", USES)
def test_what_is_imported_late_changes_no_digest(tmp_path, monkeypatch, use):
    """A digest runs no code of the program, and is the same before and after that code was imported."""
    before, expression, *imports = USES[use]
    package = tmp_path / "late"
    package.mkdir()
    package.joinpath("__init__.py").write_text(
        "import importlib\nFACTOR = 1\ndef __getattr__(name):\n"
        "    if name not in ('sub', 'scale'):\n        raise AttributeError(name)\n"
        "    sub = importlib.import_module('late.sub')\n    globals()['scale'] = sub.scale\n"
        "    return sub if name == 'sub' else sub.scale\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def digests(body):
        package.joinpath("sub.py").write_text(f"# {body}\ndef scale(x):\n    return {body}\n")
        importlib.invalidate_caches()
        space = {"lazily": lazily, "__package__": "late"}
        exec(f"{before}\ndef uses(x):\n    {'; '.join(imports) or 'pass'}\n    return {expression}", space)
        try:
            made = [digest(space["uses"])]
            there = [values_of(sys.modules[name]) for name in ("late", "late.sub") if name in sys.modules]
            assert not any("scale" in values for values in there)
            space["uses"](2)
            return [*made, digest(space["uses"])]
        finally:
            for name in ("late", "late.sub"):
                sys.modules.pop(name, None)

    first, second, other = digests("x + 1"), digests("x + 1"), digests("x + 100")
    assert len({*first, *second}) == 1
    followed = use not in ("a function of a package that loads it late", "a value of such a package", "an import")
    assert (set(other) != set(first)) == followed


def test_a_value_of_a_package_that_loads_others_late_is_followed(monkeypatch):
    module = types.ModuleType("late_too")
    module.__file__, module.FACTOR, module.__getattr__ = __file__, 1, lambda name: 1 / 0
    space = {"late_too": module}
    exec("def uses(x):\n    return late_too.FACTOR * x", space)
    before = digest(space["uses"])
    module.FACTOR = 2
    assert digest(space["uses"]) != before


def test_comments_in_a_module_that_a_function_imports_change_no_digest(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    space = {}
    exec("def uses(x):\n    from late_as_well import scale\n    return scale(x)", space)
    made = []
    for text in ("def scale(x): return x", "# scales\n\ndef scale(x): return x", "def scale(x): return 2 * x"):
        tmp_path.joinpath("late_as_well.py").write_text(text)
        importlib.invalidate_caches()
        made.append(digest(space["uses"]))
    assert made[0] == made[1] != made[2]


def test_what_raises_in_a_value_of_a_function_is_a_reason():
    class Raises:
        @property
        def __class__(self):
            raise OSError("not now")

    space = {"value": Raises()}
    exec("def uses(x):\n    return value", space)
    exec("def leads(x):\n    return uses(x)", space)
    assert any("not now" in reason for reason in derive(Pixels(transform=space["leads"])).reasons)


def test_arrays_up_to_a_gib_are_read_whole():
    large = np.zeros((40, 1024, 1024), np.uint8)
    lists = [large, [large[:20].copy(), large[20:].copy()], [large.tobytes()]]
    before = [derive(values) for values in lists]
    assert all(map(whole, before))
    large[17, 300, 5] = 1  # between the places that are read of a larger one
    lists[1][0][17, 300, 5] = 1
    lists[2][0] = large.tobytes()
    assert [derive(values).changed(then) for values, then in zip(lists, before)] == [DATA] * 3


def test_larger_arrays_are_read_in_part(monkeypatch):
    monkeypatch.setattr(identity, "MOST_BYTES", 16 << 20)  # instead of a GiB
    large, late = np.zeros((40, 1024, 1024), np.uint8), np.zeros((40, 1024, 1024), np.uint8)
    late[-1, -1, -1] = 1  # the last item is one of those that are read
    a, b = derive(large), derive(late)
    assert a.sampled
    assert a.data != b.data
    assert derive(large[:, ::2]).sampled
    assert whole(derive(large[:10]))


def test_of_a_list_of_large_arrays_some_are_read(monkeypatch):
    monkeypatch.setattr(identity, "MOST_BYTES", 16 << 20)  # instead of a GiB: 64 of these arrays
    rows = list(np.zeros((200, 1 << 18), np.uint8))
    read = []
    of = identity.Identity.of
    monkeypatch.setattr(identity.Identity, "of", lambda self, value: read.append(value) or of(self, value))
    derived = derive(rows)
    assert derived.sampled
    assert sum(value is row for value in read for row in rows) == 64
    assert any(value is rows[-1] for value in read)


def test_a_file_that_is_mapped(tmp_path):
    array = np.lib.format.open_memmap(tmp_path / "a.npy", mode="w+", shape=(1000, 10), dtype=np.int64)
    array.flush()
    before = derive(array)
    assert whole(before)
    os.utime(tmp_path / "a.npy", (1, 1))
    assert derive(array).changed(before) == DATA
    before = derive(array)
    array[500, 5] = 1
    assert derive(array).changed(before) == DATA


# ------------------------------------------------------------ once a machine


def test_programs_that_ask_at_the_same_time_look_once():
    """Four processes that already run: one of them computes. A fifth that starts later computes
    again."""
    key, (read, write) = f"test-{os.getpid()}", os.pipe()

    def asked():
        return once_per_machine.once_a_machine(key, lambda: os.write(write, b"!") and "text")

    begin = [os.pipe() for _ in range(4)]
    children = []
    for k in range(4):
        child = os.fork()
        if child == 0:
            os.read(begin[k][0], 1)
            os._exit(asked() != "text")
        children.append(child)
    while once_per_machine._now() < max(map(_started, children)):  # all began in this tick of the kernel's clock
        pass
    for _, end in begin:
        os.write(end, b".")
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 4
    in_child(lambda: asked() == "text")
    os.write(write, b".")
    assert os.read(read, 100) == b"!!."
    for end in (read, write, *(end for pipe in begin for end in pipe)):
        os.close(end)
    os.unlink(f"/dev/shm/stocached-{os.geteuid()}/.lookups/{key}")


def _started(pid):
    return (int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]) + 1) / os.sysconf("SC_CLK_TCK")


def test_a_second_question_gets_a_new_answer():
    key, answers = f"test-again-{os.getpid()}", iter("ab")
    assert [once_per_machine.once_a_machine(key, lambda: next(answers)) for _ in range(2)] == ["a", "b"]
    os.unlink(f"/dev/shm/stocached-{os.geteuid()}/.lookups/{key}")


def test_a_folder_that_is_not_ours_alone_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setattr(once_per_machine, "_FOLDER", str(tmp_path))
    tmp_path.chmod(0o755)
    assert once_per_machine.once_a_machine("key", lambda: "text") == "text"
    assert not list((tmp_path).glob(".lookups/*"))


# ------------------------------------------------------------ in a cache


def test_the_text_fits_the_header_and_is_read_again():
    for derived in (derive(Pixels()), derive(object()), derive(Files("nowhere"))):
        assert len(str(derived)) <= 64
        assert str(Derived.parse(str(derived))) == str(derived)
    assert len("auto1 d=0123456789abcd? h=012345 t=012345 x314O=0123456789abcd?") <= 64
    assert Derived.parse("squares-1") is None
    assert Derived.parse(None) is None


def test_code_of_another_python_is_not_compared():
    ours = derive(Pixels(Scale(2)))
    theirs = dataclasses.replace(ours, code="0" * 14, python="309")
    assert (ours.changed(theirs), ours.certain(theirs)) == (None, False)


def fill(dataset, name):
    loader = Loader(dataset, 10, name=name, size="16MiB")
    list(loader)
    return loader


@pytest.mark.parametrize(
    ("other", "what"),
    [
        # 100 of 1,000 samples, but none of the three that are compared at once
        (lambda: Pixels(changed=range(3, 999, 10)), DATA),
        (lambda: Pixels(changed=[700]), DATA),
        (lambda: Pixels(lambda x: x * 1), CODE),
    ],
)
def test_a_named_cache_of_other_samples_is_refused(other, what, cache_name):
    fill(Pixels(), cache_name).close()
    with pytest.raises(
        FingerprintError,
        match=rf"made for other samples: {what} changed .*stocached rm {cache_name}.*fingerprint=",
    ):
        Loader(other(), 10, name=cache_name)
    # nothing has changed: no warning, and no comparison in the background
    again = Loader(Pixels(), 10, name=cache_name)
    assert again._cached._comparison is None
    assert Cache.attach(cache_name).fingerprint == str(derive(Pixels()))


def test_a_fingerprint_of_the_users_wins(cache_name):
    Loader(Pixels(), 10, name=cache_name, size="16MiB", fingerprint="pixels-1")
    for dataset in (Pixels(), Pixels(Scale(2))):
        if dataset.transform is None:
            assert Loader(dataset, 10, name=cache_name, fingerprint="pixels-1").cache.fingerprint == "pixels-1"
        with pytest.raises(FingerprintError, match="has the fingerprint 'pixels-1' and none was asked for"):
            Loader(dataset, 10, name=cache_name)
        with pytest.raises(FingerprintError, match="pixels-2"):
            Loader(dataset, 10, name=cache_name, fingerprint="pixels-2")


def test_a_copied_folder_is_served_and_compared(root, cache_name):
    fill(Files(root), cache_name)
    copied = shutil.copytree(root, root.parent / "elsewhere", copy_function=shutil.copyfile)
    loader = Loader(Files(copied), 10, name=cache_name)
    loader._cached._comparison.done.wait()
    assert sum(len(labels) for _, labels in loader) == 40
    assert loader.stats().hits == 40


# ------------------------------------------------------------ digests of other versions


def files_of_kinds(folder: Path) -> None:
    """Files whose bytes no library makes, as sizes count."""
    header = b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '<i8', 'fortran_order': False, 'shape': (2,), }".ljust(117) + b"\n"
    for name, data in {
        "a.jsonl": b'{"n": 1}\n' * 20,
        "a.csv": b"n\n1\n2\n",
        "a.txt": b"x\n" * 9,
        "p/cats/1.jpg": bytes(100),
        "p/dogs/2.jpg": bytes(90),
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    for name, member in (("a.zip", "1.bin"), ("a.npz", "y.npy")):
        with zipfile.ZipFile(folder / name, "w") as archive:
            archive.writestr(zipfile.ZipInfo(member), header + bytes(16))
    with tarfile.open(folder / "a.tar", "w", format=tarfile.USTAR_FORMAT) as shard:
        for name in ("1.jpg", "1.cls"):
            member = tarfile.TarInfo(name)
            member.size = 1
            shard.addfile(member, io.BytesIO(b"7"))


OURS = {
    "list": (lambda: source(list(range(20))), "52064d09956737"),
    "range": (lambda: source(range(20)), "38f791967e5cb8"),
    "texts": (lambda: source(["a", "b"]), "bfc56ee77f2b1a"),
    "array": (lambda: source(np.arange(20)), "fb23aca797cab6"),
    "JSON lines": (lambda: source("a.jsonl"), "ac5b48c6632de4"),
    "CSV": (lambda: source("a.csv", columns=["n"]), "9d366fa5f8378a"),
    "text": (lambda: source("a.txt", format="text"), "76c2e62891b1d7"),
    "zip": (lambda: source("a.zip"), "fa4b195430daca"),
    "npz": (lambda: source("a.npz"), "ec0e74c70b1405"),
    "tar": (lambda: source("a.tar", fields=["jpg", "cls"], int64=["cls"]), "d17258a9555dc0"),
    "paths": (lambda: source("p/*/*.jpg"), "ac5d90bbffd364"),
    "labels": (lambda: source("p", labels="folders"), "6a03d9f6117a29"),
    "mixed files": (lambda: source("p", decode=True), "fdc68e662c8112"),
    "Folder": (lambda: image.Folder("p"), "1acddb80b63ae3"),
    "Shards": (lambda: image.Shards("a.tar"), "ae0b8b22fce91e"),
    "files of Folder": (lambda: image.Folder("p").encoded(), "ab5f51d75b215e"),
    "files of a Subset": (lambda: image.Folder("p").encoded([1, 0]), "093512bac3b500"),
    "files of Shards": (lambda: image.Shards("a.tar").encoded(), "9d6fae26ff6e5d"),
    "a class": (Pixels, "b07589e7ea281c"),
    "classes": (lambda: Around(Pixels()), "1c4b18782e6bb4"),
    "tuples": (lambda: [(np.zeros(2), 1)] * 3, "d095f4e72e5c3c"),
}


@pytest.mark.parametrize("kind", OURS)
def test_no_change_of_ours_changes_a_digest_of_data(kind, tmp_path, monkeypatch):
    """Named caches of earlier versions would be refused."""
    files_of_kinds(tmp_path)
    monkeypatch.chdir(tmp_path)
    make, digest_before = OURS[kind]
    dataset = make()
    stored = dataset.cache("16MiB")._stage._stored() if isinstance(dataset, Pipe) else dataset
    assert derive(stored).data == digest_before
