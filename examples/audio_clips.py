"""Train on audio clips: the cache keeps spectrograms, and random crops come after it.

Clips differ in length, and so do their spectrograms. One cache keeps them all. `augment=` cuts the same number of
frames out of each, at random, and masks some frequencies, so a batch has one shape.

    pip install torch
    python audio_clips.py FOLDER [--epochs 3]

FOLDER has WAV files of 16 bits. The program prints, for the nine clips of Debian's package alsa-utils:

    epoch 1: 9 crops of (64, 100), 0 of 9 samples from the cache
    epoch 2: 9 crops of (64, 100), 9 of 9 samples from the cache
    epoch 3: 9 crops of (64, 100), 9 of 9 samples from the cache
"""

import argparse
import wave
from pathlib import Path

import numpy as np
import torch
from stocached.torch import DataLoader

BANDS, FRAMES = 64, 100  # size of a crop


class Clips(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """The logarithm of the spectrum of each clip in BANDS bands, float16 of shape (BANDS, frames), and its number."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with wave.open(str(self.files[index])) as file:
            if file.getsampwidth() != 2:
                raise ValueError(f"{self.files[index]} has samples of {8 * file.getsampwidth()} bits, and not of 16")
            sound = np.frombuffer(file.readframes(file.getnframes()), "<i2").reshape(-1, file.getnchannels())
        mono = torch.from_numpy(sound.mean(1, dtype=np.float32) / 32768)
        spectrum = torch.stft(mono, 1024, 256, window=torch.hann_window(1024), return_complex=True).abs()
        bands = torch.nn.functional.adaptive_avg_pool1d(spectrum.T, BANDS).T
        return (bands + 1e-6).log().half(), index


def crop(sample: tuple[torch.Tensor, int], generator: np.random.Generator) -> tuple[torch.Tensor, int]:
    """FRAMES frames from a random place, with zeros after a short clip. A random tenth of the bands is masked."""
    spectrum, label = sample
    first = int(generator.integers(max(spectrum.shape[1] - FRAMES, 0) + 1))
    part = torch.zeros(BANDS, FRAMES)
    cut = spectrum[:, first : first + FRAMES]
    part[:, : cut.shape[1]] = cut
    masked = int(generator.integers(BANDS - BANDS // 10))
    part[masked : masked + BANDS // 10] = 0
    return part, label


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()

    loader = DataLoader(
        Clips(sorted(options.folder.rglob("*.wav"))),
        batch_size=4,
        shuffle=True,
        seed=1,
        num_workers=2,
        size="1GiB",
        variable=True,
        augment=crop,
    )
    for epoch in range(options.epochs):
        before = loader.stats()
        for spectra, _labels in loader:
            assert spectra.shape[1:] == (BANDS, FRAMES)
            # loss = model(spectra, labels) ...
        done = loader.stats() - before
        print(
            f"epoch {epoch + 1}: {done.samples} crops of {(BANDS, FRAMES)}, "
            f"{done.hits} of {done.samples} samples from the cache"
        )
    loader.close()


if __name__ == "__main__":
    main()
