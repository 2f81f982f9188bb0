"""Train on several languages of which there is more or less text, mixed with a temperature.

With temperature 1, a language comes as often as it has paragraphs. With 3, its weight is the third root of their number,
so small languages come more often. Any first batches of an epoch have these shares. The next epoch goes on where a
language was, and one that ends begins again, shuffled anew.

    pip install torch
    python languages.py FOLDER [--epochs 3] [--temperature 3] [--paragraphs 1000]

FOLDER has a folder of text files for each language, spoken or programmed. The program prints, for sources of stocached:

    C: 847 of 6036 paragraphs
    Go: 234 of 6036 paragraphs
    Python: 4955 of 6036 paragraphs
    epoch 1: C 29%, Go 19%, Python 52% of 1000 paragraphs
    epoch 2: C 29%, Go 19%, Python 52% of 1000 paragraphs
    epoch 3: C 29%, Go 19%, Python 52% of 1000 paragraphs
"""

import argparse
import functools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from stocached import mix, source
from stocached.torch import DataLoader


def paragraphs(folder: Path) -> list[str]:
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return [text for file in files for text in file.read_text(encoding="utf-8").split("\n\n") if text.strip()]


def tokens(language: int, text: str) -> dict[str, Any]:
    """The bytes of a text."""
    return {"tokens": np.frombuffer(text.encode(), np.uint8), "language": language}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--temperature", type=float, default=3)
    parser.add_argument("--paragraphs", type=int, default=1000, help="of an epoch")
    options = parser.parse_args()

    folders = sorted(folder for folder in options.folder.iterdir() if folder.is_dir())
    pipes = [
        source(paragraphs(folder)).map(functools.partial(tokens, number)).shuffle(seed=1)
        for number, folder in enumerate(folders)
    ]
    pipe = mix(pipes, temperature=options.temperature, stop=options.paragraphs).batch(16, pad={"tokens": 0})

    for number, folder in enumerate(folders):
        print(f"{folder.name}: {len(pipes[number])} of {sum(map(len, pipes))} paragraphs")
    loader = DataLoader(pipe, num_workers=2, persistent_workers=True)
    for epoch in range(options.epochs):
        seen: Counter[int] = Counter()
        for batch in loader:
            # loss = model(batch["tokens"]) ...
            seen.update(batch["language"].tolist())
        shares = ", ".join(f"{folder.name} {seen[d] / seen.total():.0%}" for d, folder in enumerate(folders))
        print(f"epoch {epoch + 1}: {shares} of {seen.total()} paragraphs")
    loader.close()


if __name__ == "__main__":
    main()
