"""The classes of folders: source/testdata/labels.json, which the tests of Go read too."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from urllib.parse import unquote_to_bytes

import pytest

from stocached import image

CASES = json.loads((Path(__file__).resolve().parents[3] / "source/testdata/labels.json").read_text())


def as_file(name: str) -> str:
    """A name of the table, with its bytes that are not UTF-8."""
    return os.fsdecode(unquote_to_bytes(name))


def make_tree(root: Path, tree: list[str]) -> None:
    for item in tree:
        name, _, target = item.partition(" -> ")
        path = root / as_file(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if target:
            path.symlink_to(target)
        elif name.endswith("/"):
            path.mkdir()
        else:
            path.write_bytes(b"x")


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_classes_are_those_of_torchvision(tmp_path, case):
    make_tree(tmp_path, case["tree"])
    if case.get("empty"):
        with pytest.raises(FileNotFoundError, match=", ".join(case["empty"])):
            image.Folder(tmp_path)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        dataset = image.Folder(tmp_path, allow_empty=bool(case.get("empty")))
    assert dataset.classes == [as_file(name) for name in case["classes"]]
    labels = {os.path.relpath(path, tmp_path): label for path, label in dataset.samples}
    assert labels == {as_file(name): label for name, label in case["labels"].items()}
    assert len(said) == bool(case.get("odd"))
    for part in case.get("odd", []):
        assert part in str(said[0].message)
        assert Path(said[0].filename) == Path(__file__)


@pytest.mark.torch
@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_torchvision_sees_the_same_classes(tmp_path, case):
    make_tree(tmp_path, case["tree"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset = image.Folder(tmp_path, allow_empty=bool(case.get("empty")))
    theirs = pytest.importorskip("torchvision.datasets").ImageFolder(tmp_path, allow_empty=True)
    assert (dataset.classes, dataset.samples) == (theirs.classes, theirs.samples)
