"""Makes the pictures of the tests, and what Pillow makes of each: NAME.rgb is
convert("RGB").resize((40, 30), BILINEAR), height 30; NAME.cropped and NAME.padded keep the proportions.

python3 make.py, in this folder. The results are committed; Pillow 13.0.0 made them.
python3 make.py FOLDER SEED COUNT makes other pictures, and of each COUNT.rgb, COUNT.cropped and COUNT.padded:
for the test that has Pillow at hand.
"""

import io
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

W, H = 40, 30


def scene(w: int, h: int, seed: int = 1) -> Image.Image:
    """A smooth picture with strong colours, edges and a little noise, as photographs have."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:h, 0:w] / max(w, h)
    planes = [127 + 120 * np.sin(7 * x + 3 * y + k * 2) * np.cos(5 * y - k) for k in range(3)]
    picture = np.stack(planes, -1)
    picture[(x - 0.4) ** 2 + (y - 0.3) ** 2 < 0.04] = (220, 30, 40)
    picture[(np.abs(x - 0.7) < 0.08) & (y > 0.2)] = (20, 60, 230)
    return Image.fromarray(np.clip(picture + rng.normal(0, 4, picture.shape), 0, 255).astype(np.uint8))


def png16(picture: np.ndarray, colour: int) -> bytes:
    """A PNG of 16 bits, which Pillow reads but does not write in RGB."""
    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    h, w = picture.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in picture)
    head = struct.pack(">IIBBBBB", w, h, 16, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")


def encoded(picture: Image.Image, form: str, **options) -> bytes:
    out = io.BytesIO()
    picture.save(out, form, **options)
    return out.getvalue()


def resized(data: bytes, w: int, h: int) -> bytes:
    """Both sides by themselves."""
    return Image.open(io.BytesIO(data)).convert("RGB").resize((w, h), Image.Resampling.BILINEAR).tobytes()


def cropped(data: bytes, w: int, h: int) -> bytes:
    """As torchvision's Resize and CenterCrop: the least short side with (w, h) inside, then the centre."""
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    width, height = picture.size
    for side in range(min(w, h), max(w, h) + 1):
        size = (width * side // height, side) if width > height else (side, height * side // width)
        if size[0] >= w and size[1] >= h:
            break
    left, top = round((size[0] - w) / 2), round((size[1] - h) / 2)
    return picture.resize(size, Image.Resampling.BILINEAR).crop((left, top, left + w, top + h)).tobytes()


def padded(data: bytes, w: int, h: int) -> bytes:
    """The whole picture, with black around it."""
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    width, height = picture.size
    size = (w, max(height * w // width, 1)) if width * h >= height * w else (max(width * h // height, 1), h)
    whole = Image.new("RGB", (w, h))
    whole.paste(picture.resize(size, Image.Resampling.BILINEAR), (round((w - size[0]) / 2), round((h - size[1]) / 2)))
    return whole.tobytes()


def others(folder: Path, seed: int, count: int) -> None:
    """Pictures of any size and noise, in all formats, each with what Pillow makes of it. The name says
    format, height and width."""
    rng = np.random.default_rng(seed)
    forms = {
        "420.jpg": {"format": "JPEG", "subsampling": "4:2:0"},
        "422.jpg": {"format": "JPEG", "subsampling": "4:2:2"},
        "444.jpg": {"format": "JPEG", "subsampling": "4:4:4"},
        "progressive.jpg": {"format": "JPEG", "progressive": True},
        "grey.jpg": {"format": "JPEG"},
        "lossy.webp": {"format": "WEBP"},
        "lossless.webp": {"format": "WEBP", "lossless": True, "method": 0},
        "rgb.png": {"format": "PNG", "compress_level": 1},
    }
    for k in range(count):
        name = list(forms)[k % len(forms)]
        width, height, w, h = (int(n) for n in (*rng.integers(8, 400, 2), *rng.integers(8, 260, 2)))
        noise = rng.normal(0, rng.choice([0, 20, 60]), (height, width, rng.choice([1, 3])))
        picture = Image.fromarray(np.clip(np.asarray(scene(width, height, k)) + noise, 0, 255).astype(np.uint8))
        picture = picture.convert("L") if name.startswith("grey") else picture
        options = dict(forms[name]) | ({} if name.endswith("png") or "lossless" in name else {"quality": int(rng.integers(50, 98))})
        data = encoded(picture, options.pop("format"), **options)
        path = folder / f"{k}-{h}-{w}-{name}"
        path.write_bytes(data)
        path.with_name(path.name + ".rgb").write_bytes(resized(data, w, h))
        path.with_name(path.name + ".cropped").write_bytes(cropped(data, w, h))
        path.with_name(path.name + ".padded").write_bytes(padded(data, w, h))


def main() -> None:
    if len(sys.argv) > 1:
        others(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
        return
    photo = scene(125, 94)
    alpha = photo.copy()
    alpha.putalpha(Image.linear_gradient("L").resize(photo.size))
    exif = Image.Exif()
    exif[0x0112] = 6
    deep = np.asarray(photo).astype(np.uint16) * 257 ^ 0x00A5  # low bytes that must not matter
    files = {
        "420.jpg": encoded(photo, "JPEG", quality=90, subsampling="4:2:0"),
        "422.jpg": encoded(photo, "JPEG", quality=90, subsampling="4:2:2"),
        "444.jpg": encoded(photo, "JPEG", quality=90, subsampling="4:4:4"),
        "progressive.jpg": encoded(photo, "JPEG", quality=80, progressive=True),
        "rgb.jpg": encoded(photo, "JPEG", quality=90, keep_rgb=True),
        "grey.jpg": encoded(photo.convert("L"), "JPEG", quality=90),
        "cmyk.jpg": encoded(photo.convert("CMYK"), "JPEG", quality=90),
        "exif6.jpg": encoded(photo, "JPEG", quality=90, exif=exif),
        "small.jpg": encoded(scene(7, 5), "JPEG", quality=95),
        "rgb.png": encoded(photo, "PNG", optimize=True),
        "tall.png": encoded(scene(3, 90), "PNG", optimize=True),
        "same.png": encoded(scene(W, H), "PNG", optimize=True),
        "one.png": encoded(Image.new("RGB", (1, 1), (10, 200, 30)), "PNG"),
        "alpha.png": encoded(alpha.resize((62, 47)), "PNG", optimize=True),
        "palette.png": encoded(photo.quantize(32), "PNG", optimize=True),
        "see-through.png": encoded(photo.quantize(16), "PNG", optimize=True, transparency=3),
        "grey.png": encoded(photo.convert("L"), "PNG", optimize=True),
        "grey-alpha.png": encoded(alpha.resize((62, 47)).convert("LA"), "PNG", optimize=True),
        "bits.png": encoded(photo.convert("1"), "PNG", optimize=True),
        "deep.png": png16(deep[:40, :50], 2),
        "lossy.webp": encoded(photo, "WEBP", quality=90),
        "lossless.webp": encoded(photo, "WEBP", lossless=True),
        "alpha.webp": encoded(alpha, "WEBP", quality=90),
        "lossless-alpha.webp": encoded(alpha.resize((62, 47)), "WEBP", lossless=True, exact=True),
        "moving.webp": encoded(scene(20, 20), "WEBP", save_all=True, append_images=[scene(20, 20, 2)], duration=100),
    }
    for name, data in files.items():
        with open(name, "wb") as out:
            out.write(data)
        if name != "exif6.jpg":  # this picture is turned, which resized() does not do
            with open(name + ".rgb", "wb") as out:
                out.write(resized(data, W, H))
        if name in ("420.jpg", "grey.jpg", "small.jpg", "rgb.png", "tall.png", "one.png", "lossless.webp"):
            with open(name + ".cropped", "wb") as out:
                out.write(cropped(data, W, H))
            with open(name + ".padded", "wb") as out:
                out.write(padded(data, W, H))
    with open("still.gif", "wb") as out:  # a format that servers do not decode
        out.write(encoded(photo.quantize(32), "GIF"))
    with open("deep-grey.png", "wb") as out:  # Pillow clips it: no golden picture
        out.write(png16(deep[:20, :20, 0], 0))
    with open("500x375.jpg", "wb") as out:  # for the benchmark: as large as those of ImageNet
        noisy = np.asarray(scene(500, 375)).astype(int) + np.random.default_rng(3).normal(0, 9, (375, 500, 1))
        out.write(encoded(Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8)), "JPEG", quality=90, subsampling="4:2:0"))


if __name__ == "__main__":
    main()
