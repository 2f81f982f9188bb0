"""The programs in examples/ that are pipes: on photographs, recorded words, guides and sources, which are all real. The
programs print what shows that they work."""

from __future__ import annotations

# ruff: noqa: F811 - arguments of tests are fixtures, by their names
import json
import random
import re
import shutil
import sys
import tarfile
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[3] / "tools"))
from checks_examples import (  # noqa: F401 - fixtures
    EACH,
    EXAMPLES,
    PHOTOGRAPHS,
    ROOT,
    SAMPLES,
    Run,
    apart,
    fills,
    interpreters,
    one_thread,
    photos,
    program,
    run,
    sounds,
)

pytestmark = pytest.mark.torch


def parts(printed: str, what: str) -> list[tuple[int, int]]:
    """Hits and elements of each epoch."""
    return [(int(hits), int(all_)) for hits, all_ in re.findall(rf"\b(\d+) of (\d+) {what} from the cache", printed)]


def test_texts_are_packed(run: Run) -> None:
    pytest.importorskip("tokenizers")
    files = list((ROOT / "docs/guides").glob("*.md"))
    printed = run("text_packing.py", ROOT / "docs/guides")
    assert parts(printed, "files") == [(0, len(files)), (len(files), len(files)), (len(files), len(files))]
    (tokens,) = set(re.findall(r"([\d,]+) tokens", printed))  # each epoch packs all of them
    assert int(tokens.replace(",", "")) > 1000 * len(files)
    paddings = re.findall(r"(\d+)% padding \((\d+)%", printed)
    assert all(int(packed) < 8 < 50 < int(alone) for packed, alone in paddings), printed


def test_a_folder_without_texts(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    (tmp_path / "a.txt").write_text("\n\n")
    assert "epoch 3: 0 tokens in 0 rows" in run("text_packing.py", tmp_path)


def test_pictures_without_boxes(run: Run, photos: Path, tmp_path: Path) -> None:
    pictures = [str(file) for file in sorted(photos.rglob("*.jpg"))[:3]]
    images = [{"id": k, "file_name": name, "width": 9, "height": 9} for k, name in enumerate(pictures)]
    (tmp_path / "boxes.json").write_text(json.dumps({"images": images, "annotations": []}))
    assert "epoch 3: 3 pictures with 0 boxes, 0%" in run("detection.py", tmp_path / "boxes.json", "--size", "64MiB")


def test_audio(run: Run, sounds: Path) -> None:
    clips = len(list(sounds.rglob("*.wav")))
    printed = run("audio_clips.py", sounds)
    assert parts(printed, "clips") == [(0, clips), (clips, clips), (clips, clips)]
    batches = re.findall(rf": {clips} clips, at most (\d+) frames in a batch, (\d+)%", printed)
    assert len(batches) == 3, printed
    assert all(int(most) <= 1000 and int(padding) < 15 for most, padding in batches), printed


def test_a_part_of_the_pictures_of_tars_is_cached(run: Run, photos: Path, tmp_path: Path) -> None:
    for k, file in enumerate(sorted(photos.rglob("*.jpg"))):
        (tmp_path / "cls").write_text(str(k // EACH))
        with tarfile.open(tmp_path / f"{k % 12}.tar", "a") as tar:
            tar.add(file, f"{k:06}.jpg")
            tar.add(tmp_path / "cls", f"{k:06}.cls")
    with tarfile.open(tmp_path / "0.tar", "a") as tar:
        tar.add(photos, "./", recursive=False)  # as `tar --create .` writes it
    printed = run("tars.py", tmp_path, "--size", "14MiB")
    assert printed.count(f": {SAMPLES} pictures of {len(PHOTOGRAPHS)} classes") == 3
    first, *later = re.findall(r", (\d+) of (\d+) from the cache", printed)
    assert first == ("0", f"{SAMPLES}"), printed
    assert len(later) == 2, printed
    assert all(SAMPLES / 6 < int(hits) < SAMPLES * 5 / 6 for hits, _ in later), printed

    with tarfile.open(tmp_path / "0.tar", "a") as tar:
        tar.add(tmp_path / "cls", "000099.cls")
    with pytest.raises(AssertionError, match=r"0\.tar: sample \d+ has none of the fields jpg"):
        run("tars.py", tmp_path)


BOXES = """
import sys; sys.path.insert(0, {folder!r})
from pathlib import Path
import numpy as np
from detection import NO_BOX, pipe_of
from stocached import Loader

for batch in Loader(pipe_of(Path({file!r}), 64, "16MiB")):
    for picture, boxes in zip(batch["image"], batch["boxes"]):
        inside = np.zeros((64, 64), bool)
        for left, top, right, bottom in boxes[boxes[:, 4] != NO_BOX, :4] * 64:
            inside[round(top) : round(bottom), round(left) : round(right)] = True
        assert ((picture.mean(0) > 96) == inside).mean() > 0.95
"""


def test_boxes_move_with_their_pictures(run: Run, photos: Path, tmp_path: Path) -> None:
    """Parts of photographs lie in darker ones."""
    image, dice = pytest.importorskip("PIL.Image"), random.Random(1)
    images, boxes = [], []
    for k, file in enumerate(sorted(photos.rglob("*.jpg"))):
        picture = image.open(file).point([v // 4 for v in range(256)] * 3)
        for left in range(10, 10 + 30 * (k % 5), 30):
            box = left, dice.randrange(70), 25, dice.randrange(15, 40)
            picture.paste(image.open(file).resize(box[2:]).point([160 + v // 3 for v in range(256)] * 3), box[:2])
            boxes.append({"image_id": k, "category_id": k // EACH, "bbox": box})
        picture.save(tmp_path / f"{k}.jpg", quality=95)
        images.append({"id": k, "file_name": f"{k}.jpg", "width": picture.width, "height": picture.height})
    (tmp_path / "boxes.json").write_text(json.dumps({"images": images, "annotations": boxes}))
    printed = run("detection.py", tmp_path / "boxes.json", "--size", "64MiB")
    assert fills(printed, SAMPLES)
    assert printed.count(f" {len(boxes)} boxes, ") == 3
    program(run.interpreters, tmp_path, BOXES.format(folder=str(EXAMPLES), file=str(tmp_path / "boxes.json")), ())


def test_languages_are_mixed(run: Run, tmp_path: Path) -> None:
    for language, folder in {"C": "cclient/src", "Go": "order", "Python": "python/src/stocached"}.items():
        shutil.copytree(ROOT / folder, tmp_path / language, ignore=shutil.ignore_patterns("__pycache__"))
    printed = run("languages.py", tmp_path)
    weights = [int(text) ** (1 / 3) for text in re.findall(r": (\d+) of", printed)]
    shares = [int(text) for text in re.findall(r"(\d+)%", printed)]
    wanted = [100 * weight / sum(weights) for weight in weights] * 3
    assert shares == pytest.approx(wanted, abs=0.75), printed  # there are 1,000 items, and whole percents
