"""The public names, the error classes, and that the raw binding agrees with stocached.h."""

from __future__ import annotations

import ctypes
import importlib.util
import inspect
import os
import pickle
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from helpers import python

import stocached
from stocached import _native
from stocached._cache import fetch_calls
from stocached._common import errors
from stocached._native import _binding, _image_header

ROOT = Path(__file__).resolve().parents[2]
HEADER = ROOT / "cclient" / "stocached.h"


def test_exported_names():
    """Each name that the package has is one that it exports, and help() and completion show it."""
    there = {
        name for name, value in vars(stocached).items() if not name.startswith("_") and not inspect.ismodule(value)
    }
    if importlib.util.find_spec("torch"):
        there.add("SharedCache")  # comes when it is asked for
    assert sorted(stocached.__all__) == sorted(there - {"annotations", "TYPE_CHECKING", "Any"})
    assert dir(stocached) == stocached.__all__


def test_all_names_and_help_come_without_torch():
    python(
        "import sys; sys.modules['torch'] = None\n"
        "from stocached import *\n"
        "import pydoc, stocached\n"
        "assert Loader is stocached.Loader and 'SharedCache' not in globals()\n"
        "assert 'class Loader' in pydoc.render_doc(stocached, renderer=pydoc.plaintext)\n"
    )


def test_import_needs_no_torch():
    python("import stocached, sys; assert 'torch' not in sys.modules")


def test_version_is_the_library_s():
    assert f'version = "{stocached.__version__}"' in (ROOT / "python" / "pyproject.toml").read_text()


BUILT_IN = {
    "InvalidError": ValueError,
    "SampleIndexError": IndexError,
    "SchemaError": ValueError,
    "CacheNotFoundError": FileNotFoundError,
    "CacheExistsError": FileExistsError,
    "FormatError": ValueError,
    "VersionError": ValueError,
    "FingerprintError": ValueError,
    "CacheMemoryError": MemoryError,
    "CachePermissionError": PermissionError,
    "ReadOnlyError": PermissionError,
    "ClosedError": ValueError,
    "ClientsError": RuntimeError,
    "CacheTimeoutError": TimeoutError,
    "SystemCallError": OSError,
    "LostError": RuntimeError,
    "CorruptError": RuntimeError,
    "UnsupportedError": NotImplementedError,
    "NoServerError": ConnectionError,
    "ReplacedError": RuntimeError,
    "FetchError": OSError,
}


def codes_of_header() -> dict[str, int]:
    return {name: int(value) for name, value in re.findall(r"^\s*STOC_(E[A-Z]+) = (-\d+)", HEADER.read_text(), re.M)}


def test_one_class_for_each_error_code():
    codes = codes_of_header()
    assert len(codes) == 22
    # EINTERRUPTED never leaves the package
    assert sorted(errors.BY_CODE) == sorted(set(codes.values()) - {codes["EINTERRUPTED"]})
    for name, built_in in BUILT_IN.items():
        kind = getattr(stocached, name)
        assert issubclass(kind, stocached.StocachedError)
        assert issubclass(kind, built_in)
        assert errors.BY_CODE[kind.code] is kind
        assert kind.__module__ == "stocached"


@pytest.mark.parametrize("name", BUILT_IN)
def test_errors_survive_pickling_and_rebuilding(name):
    kind = getattr(stocached, name)
    error = errors.make(kind.code, "7 of 9", 28)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(kind("7 of 9")) == "7 of 9"  # the DataLoader builds type(error)(message)
    if isinstance(error, OSError):
        assert error.errno == 28


def test_fetch_error_keeps_its_failures_when_pickled():
    failures = (errors.FetchFailure(1, 60, "READ", "no such file"),)
    error = stocached.FetchError("sample 60", failures, object(), object())
    again = pickle.loads(pickle.dumps(error))
    assert again.failures == failures
    assert again.out is None
    assert again.ok is None


def test_kinds_of_failures_are_those_of_the_header():
    kinds = {int(value): name for name, value in re.findall(r"STOC_REMOTE_([A-Z_]+) = (\d+)", HEADER.read_text())}
    assert len(kinds) == 14
    assert kinds == fetch_calls._KINDS


def test_every_code_of_the_header_has_a_text():
    for code in codes_of_header().values():
        assert _native.strerror(code)


def test_structs_are_those_of_the_header(tmp_path):
    """A C program prints size and offsets of every struct. ctypes must have the same layout."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    assert compiler, "no C compiler"
    structs = {
        "stoc_error": _native.Error,
        "stoc_field": _native.Field,
        "stoc_options": _native.Options,
        "stoc_info": _native.Info,
        "stoc_stats": _native.Stats,
        "stoc_claim": _native.Claim,
        "stoc_failure": _native.Failure,
        "stoc_fetch_options": _native.FetchOptions,
        "stoc_order": _native.Order,
        "stoc_mix": _native.Mix,
        "stoc_shard": _native.Shard,
        "stoc_task": _native.Task,
        "stoc_batch": _native.Batch,
        "iovec": _native.IoVec,
    }
    names = {"iovec": {"base": "iov_base", "length": "iov_len"}}
    lines = []
    for struct, mirror in structs.items():
        lines.append(f'printf("{struct} %zu\\n", sizeof(struct {struct}));')
        for field, *_ in mirror._fields_:
            lines.append(
                f'printf("{struct}.{field} %zu\\n", offsetof(struct {struct}, {names.get(struct, {}).get(field, field)}));'
            )
    source = tmp_path / "layout.c"
    source.write_text(f'#include "{HEADER}"\n#include <stdio.h>\nint main(void) {{ {" ".join(lines)} return 0; }}\n')
    subprocess.run([compiler, "-o", tmp_path / "layout", source], check=True)
    output = subprocess.run([tmp_path / "layout"], check=True, capture_output=True, text=True).stdout
    for line in output.splitlines():
        what, number = line.split()
        struct, _, field = what.partition(".")
        mirror = structs[struct]
        assert int(number) == (getattr(mirror, field).offset if field else ctypes.sizeof(mirror)), what


@pytest.mark.parametrize(
    ("header", "api", "bound"),
    [(HEADER, "STOC_API", _native), (ROOT / "cimage" / "stocached_image.h", "STOC_IMAGE_API", _image_header)],
    ids=["stocached.h", "stocached_image.h"],
)
def test_all_of_a_header_is_bound(header, api, bound):
    text = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.DOTALL)
    kinds = {
        f"\n{api} ": lambda value: hasattr(value, "argtypes") and not inspect.isclass(value),
        "\nstruct stoc_": lambda value: inspect.isclass(value) and issubclass(value, ctypes.Structure),
        "\ntypedef struct ": lambda value: inspect.isclass(value) and ctypes.c_void_p in value.__bases__,
    }
    for declaration, belongs in kinds.items():
        names = {value.__name__ for value in vars(bound).values() if belongs(value)} - {"IoVec", "munmap"}
        assert len(names) == text.count(declaration) > 0, declaration


def test_brief_functions_and_addresses_are_those_of_a_header():
    bound = vars(_native) | vars(_image_header)
    assert all(callable(bound[name]) for name in _binding.BRIEF)
    for place in _binding._ADDRESSES:
        assert ctypes.c_void_p in bound[place.partition(".")[0]].argtypes, place


def test_the_package_uses_only_names_that_a_header_has():
    """mypy cannot know them."""
    missing = set()
    for path in (ROOT / "python/src/stocached").rglob("*.py"):
        text = path.read_text()
        for module, bound in (("native", _image_header), ("_native", _native)):
            if re.search(rf"import .*\b{bound.__name__.rpartition('.')[2]}\b( as {module})?$", text, re.MULTILINE):
                names = re.findall(rf"(?<![\w.]){module}\.([A-Za-z]\w*)", text)
                missing |= {(path.name, name) for name in names if not hasattr(bound, name)}
    assert missing == set()


@pytest.mark.parametrize(
    "text",
    [
        "STOC_API long double stoc_half(int x);", "STOC_API int stoc_take(long double x);",
        "struct stoc_odd { long x; };", "enum stoc_odd { STOC_ONE };", "struct stoc_odd { int x[2][2]; };",
        "static int x;", "struct stoc_odd { long double (*f)(int x); };", "STOC_API int stoc_get(stoc_other *x);",
    ],
)  # fmt: skip
def test_an_unknown_declaration_is_refused(text):
    library = _native.releasing, _native.holding
    with pytest.raises(ImportError, match="not understood"):
        _binding._Header(f"#define STOC_ABI_VERSION {_native.ABI_VERSION}u\n{text}", "stoc_", *library)


def test_unknown_library_says_what_to_do(tmp_path):
    result = subprocess.run(
        [os.sys.executable, "-c", "import stocached"],
        env={**os.environ, "STOCACHED_LIB_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert f"no library at {tmp_path / 'libstocached.so'} (STOCACHED_LIB_PATH)" in result.stderr


@pytest.mark.parametrize(("name", "prefix"), [("libstocached.so", "stoc"), ("libstocached_image.so", "stoc_image")])
def test_library_of_another_release_is_refused(name, prefix, tmp_path):
    other = tmp_path / name
    code = f"unsigned {prefix}_abi_version(void) {{ return 99; }}"
    subprocess.run(["cc", "-shared", "-xc", "-", "-o", other], input=code, text=True, check=True)
    if name != "libstocached.so":
        (tmp_path / "libstocached.so").symlink_to(Path(_native._library.path).resolve())
    result = subprocess.run(
        [os.sys.executable, "-c", "import stocached.image"],
        env={**os.environ, "STOCACHED_LIB_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"stocached: {other} speaks ABI version 99, this package needs " in result.stderr


def test_shm_size():
    stats = os.statvfs("/dev/shm")
    assert stocached.get_shm_size() == stats.f_bsize * stats.f_blocks // 2**30
