"""Train on audio clips of different lengths, in batches of so many frames.

The cache keeps the spectrum of each clip. After it, each clip gets another speed in each epoch, and so another length.
`.batch(size=)` puts clips of like lengths together, so batches have little padding, and none is larger than the GPU takes.

    pip install torch
    python audio_clips.py FOLDER [--epochs 3] [--frames 1000]

FOLDER has WAV files of 16 bits. The program prints, for the nine clips of Debian's package alsa-utils:

    epoch 1: 9 clips, at most 948 frames in a batch, 3% padding, 0 of 9 clips from the cache
    epoch 2: 9 clips, at most 951 frames in a batch, 3% padding, 9 of 9 clips from the cache
    epoch 3: 9 clips, at most 900 frames in a batch, 2% padding, 9 of 9 clips from the cache
"""

import argparse
import operator
import wave
from typing import Any

import numpy as np
import torch
from stocached import source
from stocached.torch import DataLoader

BANDS = 64


def spectrum(path: str) -> torch.Tensor:
    """The logarithm of the spectrum in BANDS bands, float16 of shape (frames, BANDS)."""
    with wave.open(path) as file:
        if file.getsampwidth() != 2:
            raise ValueError(f"{path} has samples of {8 * file.getsampwidth()} bits, and not of 16")
        sound = np.frombuffer(file.readframes(file.getnframes()), "<i2").reshape(-1, file.getnchannels())
    mono = torch.from_numpy(sound.mean(1, dtype=np.float32) / 32768)
    whole = torch.stft(mono, 1024, 256, window=torch.hann_window(1024), return_complex=True).abs()
    return (torch.nn.functional.adaptive_avg_pool1d(whole.T, BANDS) + 1e-6).log().half()


def vary(frames: torch.Tensor, generator: np.random.Generator) -> dict[str, Any]:
    """Plays a clip at another speed, and masks a random tenth of the bands."""
    length = round(len(frames) * generator.uniform(0.8, 1.25))
    made = torch.nn.functional.interpolate(frames.float().T[None], length, mode="linear")[0].T
    masked = int(generator.integers(BANDS - BANDS // 10))
    made[:, masked : masked + BANDS // 10] = 0
    return {"frames": made, "length": length}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--frames", type=int, default=1000, help="the most of a batch, with padding")
    options = parser.parse_args()

    pipe = (
        source(f"{options.folder}/**/*.wav")
        .map(spectrum)
        .cache("1GiB")
        .shuffle(seed=1)
        .map(vary)
        .batch(options.frames, size=operator.itemgetter("length"), pad={"frames": 0})
    )
    loader = DataLoader(pipe, num_workers=2, persistent_workers=True)
    for epoch in range(options.epochs):
        before, clips, most, places, frames = loader.stats(), 0, 0, 0, 0
        for batch in loader:
            # loss = model(batch["frames"], batch["length"]) ...
            count, longest, _ = batch["frames"].shape
            clips, most, places = clips + count, max(most, count * longest), places + count * longest
            frames += int(batch["length"].sum())
        (cache,) = (stage for stage in (loader.stats() - before).stages if stage.stage.startswith(".cache"))
        print(
            f"epoch {epoch + 1}: {clips} clips, at most {most} frames in a batch, {1 - frames / places:.0%} padding, "
            f"{cache.hits} of {cache.hits + cache.misses} clips from the cache"
        )
    loader.close()


if __name__ == "__main__":
    main()
