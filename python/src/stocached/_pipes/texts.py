"""What `source` makes of a text: the paths of a pattern or a folder, or the samples of a served cache."""

from __future__ import annotations

import contextlib
import heapq
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import groupby, islice, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from .._common.errors import CacheNotFoundError, InvalidError
from .._common.notes import raise_noted
from .._common.one_line import one_line, printable
from .._common.remote_addresses import ADDRESSES, WEB, shown
from .._formats import registry
from .._formats.elements import Elements
from .._memory.texts import PIECE, Texts, folder_of
from .._shards.braces import expanded
from .._shards.wildcards import WILD, Run, found, literal, plain, split

_SERVED = "stocached:"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_TAR = registry.FORMATS["tar"]
_BRACES = re.compile(r"[\\{},]")
_SHELL = re.compile(r"~|\$\w|\$\{")
_SHOWN = 3  # names of a folder, in an error


def of_text(text: str, format: str | None, options: dict[str, Any]) -> Any:
    """A sequence of what a text names. format, options: of files; options of an address too. Raises InvalidError, and the
    errors of an address."""
    try:
        return _of_text(text, format, options)
    except PermissionError as error:
        if error.filename is None:  # a server said it
            raise
        error.filename = os.fsdecode(error.filename)
        raise_noted(
            error, f"stocached: user id {os.geteuid()} may not read it; its owner permits that by chmod or setfacl"
        )


def _of_text(text: str, format: str | None, options: dict[str, Any]) -> Any:
    decode, remote = _decode_of(text, options), options.get("remote")
    if remote is not None and not isinstance(remote, Mapping):
        raise InvalidError(f'remote={remote!r}: give a dict, such as {{"endpoint": "https://storage.example:9000"}}')
    if text.startswith(ADDRESSES):
        return _of_address(text, format, options, decode)
    address = _SCHEME.match(text)
    if text.startswith(_SERVED) and format is None and not options and not decode:
        from .._datasets.source_dataset import SourceDataset

        return SourceDataset(text.removeprefix(_SERVED))
    if address is not None and (text.startswith("//", address.end()) and not os.path.exists(text)):
        lower = address[0].lower() + text[address.end() :]
        if lower.startswith(ADDRESSES):
            raise InvalidError(f"source({one_line(shown(lower))}): write {address[0].lower()}// and not {address[0]}//")
        return _of_files(text, format, options, decode)
    ours = any(os.path.isfile(os.path.join(text, name)) for name in ("dataset.json", "00000.stocblk"))
    if ours and format is None and not options and not decode:
        from .._prepared import dataset  # takes 40 ms, which few programs need

        if dataset.is_written(text):
            return dataset.dataset_in(text)
    if format in (None, "mds") and os.path.isfile(os.path.join(text, "index.json")):
        from .._formats import mds  # few programs need it

        listed = mds.listed(text)
        if listed is not None:
            return _of_listed(listed, options)
    paths = paths_of(text)
    if decode:
        from .._formats import mixed  # few programs need it

        return mixed.of_paths(paths, text, format, options)
    found = registry.named(text, format, True)
    if format is None:
        found = registry.chosen(paths, paths[0], text, registry.INSTEAD)
    if found is not None:
        return Elements(found, paths, options)
    if options:
        from .._formats import labelled_files  # few programs need it

        return labelled_files.labelled(paths, _roots(text), text, options)
    return paths


def _decode_of(text: str, options: dict[str, Any]) -> bool:
    """Takes decode= out of the options."""
    decode = options.pop("decode", False)
    if not isinstance(decode, bool):
        raise InvalidError(
            f"source({one_line(shown(text))}): decode={decode!r} is neither True nor False; sizes of pictures are for .map"
        )
    return decode


def _of_address(text: str, format: str | None, options: dict[str, Any], decode: bool) -> Any:
    """Of a bucket or a web server. As on this machine, what exists as it stands is no pattern."""
    from .._formats import remote_files

    wild = WILD.search(text)
    exact = remote_files.exactly(text, options.get("remote")) if wild else None
    if exact is None:
        try:
            return _of_objects(text, format, {**options}, decode)
        except (InvalidError, CacheNotFoundError):
            exact = None if wild else remote_files.exactly(text, options.get("remote"))
            if exact is None:
                raise
    made, is_folder = exact
    return _of_objects(made, format, options, decode, text if is_folder else "")


def _of_objects(text: str, format: str | None, options: dict[str, Any], decode: bool, folder: str = "") -> Any:
    """folder: the one that the text names as it stands, if it has special characters."""
    shown_text = shown(text)
    ones = expanded(shown_text)
    read = registry.of_ending(ones[0])
    own = "kind" in options
    if format is None and read is _TAR and not own:
        read, options = None, _of_shards(options)
    if not own and (format is not None or read is not None):
        return _of_files(text, format, options, decode)
    if format is not None:
        raise InvalidError(
            f"source({one_line(shown_text)}): format= and kind= do not go together; leave one of them out"
        )
    from .._datasets import address_dataset  # few programs need it

    if options.get("labels") == "folders":
        from .._formats import labelled_files

        ends = ((one, WILD.search(one)) for one in ([folder] if folder else ones))
        labelled_files.check_roots(
            {one[: wild.start()].rpartition("/")[0] if wild and not folder else one for one, wild in ends}, shown_text
        )
    plainly = options
    if folder:
        options = {**options, "glob": "**"}
    made = address_dataset.source_of(folder or text, options)
    kind = made["kind"]
    if decode:
        return address_dataset.DecodedAddress(text, options) if kind == "tar" else _of_files(text, None, plainly, True)
    others = {*plainly} - {"remote"}
    # A server of this kind expands no braces of folders and no ranges, and finds nothing wrong if a name is missing.
    listed = "{" in made["path"] or ".." in shown_text or not all(map(WILD.search, ones))
    several = text.startswith(WEB) or ("{" in shown_text and listed and not folder)
    if kind == "dir" and not own and (others & registry.options_read() or (not others and several)):
        return _of_files(text, None, plainly, False)
    may_be_files = kind == "dir" and not own and not others
    try:
        return address_dataset.AddressDataset(folder or text, options, registry.names_read() if may_be_files else "")
    except address_dataset.FilesError:
        return _of_files(text, None, plainly, False)


def _of_files(text: str, format: str | None, options: dict[str, Any], decode: bool) -> Any:
    """Of files of formats at an address, which this machine reads a part at a time."""
    from .._formats import mixed, remote_files

    name = one_line(shown(text))
    kind = registry.named(text, format, False)
    remote, by_server = options.pop("remote", None), text.startswith(ADDRESSES)
    lists = by_server and not text.startswith(WEB)  # so that the server reads folders
    files = remote_files.files_of(text, remote)
    served = options if remote is None else {"remote": remote, **options}  # options for what the server reads
    if decode:
        if by_server and format is None and all(registry.of_ending(shown(name)) is _TAR for name in files.names):
            return _of_tars(files.names, text, served, True)
        return mixed.of_paths(files, text, format, options)
    if format in (None, "mds") and plain(text) is not None:
        from .._formats import mds  # few programs need it

        listed = mds.listed(files.folder, files)
        if listed is not None:
            return _of_listed(listed, options)
    if format is None:
        instead = 'kind="dir" for the bytes of all' if lists else "a pattern of the others for their bytes"
        kind = registry.chosen(files.texts, files[0], text, instead)
    if kind is _TAR and by_server:
        return _of_tars(files.names, text, served, False)
    if kind is not None:
        return Elements(kind, files, options)
    if options:
        raise InvalidError(f"source({name}): {', '.join(options)} are for files of a format, and these are bytes alone")
    if not lists:
        return mixed.Whole(files)
    from .._datasets import address_dataset  # few programs need it

    if "{" not in text:
        return address_dataset.AddressDataset(text, served)
    folder, pattern = _pattern(files.names, text)
    return address_dataset.AddressDataset(text, {**served, "glob": pattern}, path=folder)


def _of_tars(names: list[str], text: str, options: dict[str, Any], decode: bool) -> Any:
    """Of tar shards of folders, or of a pattern without their ending. names: what was found."""
    from .._datasets import address_dataset

    folder, pattern = _pattern(names, text)
    kind = address_dataset.DecodedAddress if decode else address_dataset.AddressDataset
    return kind(text, _of_shards(options), path=literal(folder) + pattern)


def _pattern(names: list[str], text: str) -> tuple[str, str]:
    """A folder, and a pattern of what a text names below it, for a server: ranges are expanded, and ** is for all of a
    folder. names: what was found."""
    known, made = {*names}, []
    for one in expanded(text):
        name = one if one in known else plain(one)
        folder = name is not None and name not in known
        made.append((f"{name.rstrip('/')}/" if name and folder else name or one, name is None, "**" * folder))
    start = os.path.commonprefix([WILD.split(one)[0] if wild else one for one, wild, _ in made]).rfind("/") + 1  # noqa: RUF071 - cut at a slash
    first, *others = [
        (_BRACES.sub(r"\\\g<0>", one[start:]) if wild else literal(one[start:])) + end for one, wild, end in made
    ]
    return made[0][0][:start], f"{{{','.join([first, *others])}}}" if others else first


def _of_shards(options: dict[str, Any]) -> dict[str, Any]:
    """The keys of a source of tar shards that a server reads at an address, so that items are those of this machine."""
    return {"kind": "tar", "sorted": True, "keys": "fields" not in options, **options}


def _of_listed(listed: Any, options: dict[str, Any]) -> Elements:
    """Of the shards of Streaming that an index lists."""
    made = Elements(replace(registry.FORMATS["mds"], of=listed), listed.paths, options)
    made.kind = type(listed).of  # they are open, so that no copy needs the index
    return made


def paths_of(text: str) -> Texts:
    """The files that a pattern or a folder names, each once, in byte order. Raises InvalidError."""
    patterns, files = [], []
    for one in _ones(text):
        if os.path.isdir(one):
            patterns.append((os.path.join(one, ""), ["**"]))
        elif os.path.isfile(one):
            files.append(os.fsencode(one))
        elif WILD.search(one):
            patterns.append(split(one))
        else:
            _check_access(one)
            raise InvalidError(
                f"source({one_line(text)}): {printable(one) or 'an empty text'} is no file and no folder{_instead(one)}. Correct the path"
            )
    patterns.sort()
    folder = folder_of([folder for folder, _ in (*patterns[:1], *patterns[-1:])] + list(map(os.fsdecode, files)))
    made = Texts.joined(folder, "surrogateescape", _pieces(_merged(patterns, sorted(files)), len(os.fsencode(folder))))
    if not len(made):
        raise InvalidError(f"source({one_line(text)}): {_nothing(patterns)}")
    return made


def _roots(text: str) -> set[str]:
    """The folders in which the patterns of a text begin."""
    return {
        one if os.path.isdir(one) else split(one)[0] if WILD.search(one) else os.path.dirname(os.path.dirname(one))
        for one in _ones(text)
    }


def _ones(text: str) -> list[str]:
    """The names and patterns of a text. What exists as it stands is no pattern."""
    return [text] if os.path.exists(text) else [plain(one) or one for one in expanded(text)]


def _merged(patterns: list[tuple[str, list[str]]], literal: list[bytes]) -> Iterator[Run]:
    """All files, each once, in byte order. patterns: sorted by their folders."""
    if not literal and all(not b.startswith(a) for (a, _), (b, _) in pairwise(patterns)):
        for pattern in patterns:
            yield from found(*pattern)
        return
    listings = [(folder + name for folder, names in found(*one) for name in names.tolist()) for one in patterns]
    paths = (path for path, _ in groupby(heapq.merge(literal, *listings)))
    while some := list(islice(paths, PIECE)):
        yield b"", np.array(some)


def _pieces(runs: Iterator[Run], start: int) -> Iterator[tuple[bytes, npt.NDArray[Any]]]:
    """start: bytes of each path that are left out."""
    for folder, names in runs:
        for k in range(0, len(names), PIECE):
            some = names[k : k + PIECE]
            if folder:
                inner = folder[start:]
                yield inner + inner.join(some.tolist()), np.char.str_len(some) + len(inner)
            else:
                yield b"".join([path[start:] for path in some.tolist()]), np.char.str_len(some) - start


def _nothing(patterns: list[tuple[str, list[str]]]) -> str:
    """What was searched, and what to do."""
    folder, parts = patterns[0]
    if not os.path.isdir(folder or "."):
        _check_access(folder)
        return f"the folder {printable(folder)} does not exist{_instead(folder)}. Correct the path"
    names = sorted(name for name in os.listdir(folder or ".") if not name.startswith("."))
    has = f"has {len(names):,} names, such as {', '.join(map(printable, names[:_SHOWN]))}" if names else "is empty"
    return (
        f"no file in {printable(folder) or 'the working folder'} matches {'/'.join(parts)}; the folder {has}. Names that "
        "begin with a dot do not count. Correct the pattern: * stands for text within a name, ** for any folders"
    )


def _check_access(path: str) -> None:
    """Raises PermissionError for what may be there, in a folder that is closed."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        os.stat(path)


def _instead(path: str) -> str:
    shell = "; ~ and $ are for shells: give os.path.expanduser and os.path.expandvars of it" * bool(_SHELL.match(path))
    return "" if os.path.isabs(path) else f" in {printable(os.getcwd())}{shell}"
