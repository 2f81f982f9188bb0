"""Odd pictures: one file for each way in which files differ. FILES has all of them, by name.

`right` says what each is: Pillow's `exif_transpose` and `convert("RGB")`, or None where the answer is an error. The
script makes the files, as no library writes most of them."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from pictures import Image, encoded, picture
from PIL import ImageOps

WIDTH, HEIGHT = 24, 18
# Of libjpeg's encoder: Pillow writes no such files. Deflated, in base 85.
OF_LIBJPEG = {
    "arithmetic": (
        r"c-"
        r"s4a<NpH&0WUXCHwH#V1_nkTWcYuZ!I^=TnT3UgnH5N|va+(V^Kh^O0Y5i4CyyY%kdPq1prEjrjJU9fl&GMfgrbC$tgO7eys)^Eij"
        r"tg)jGVk2$Ph-LR(3XaJ`N5(IT1k-Ig-KulMI3!3_=VN%#2D5OoEKef{g#qFmN#l2(U5=2(tda#lXYN2$WzJWUy!W&u}x4eXTy<wi"
        r"K2(r$uI%J(K;Af3w#;mCs)E>(zHVudO)#F=-aNU!29yOWQ+r-U<b5%sKN-y!tAa!^`9U8H&3U1xr6E9qpa|@#@!wYppykr-"
        r"!e~+OAi|b$@=d-<{>h9sb`000wSOa{"
    ),
    "arithmetic, progressive": (
        r"c-"
        r"s4a<NpH&0WUXCHwH#V1_nkTWcYuZ!I^=TnT3UgnH5N|va+(V^Kh^O0Y5i4CyyY%kdPq1prEjrjJU9fl&GMfgrbC$tgO7eys)^Eij"
        r"tg)jGVk2$Ph-LR(3XaJ`N5(IT1k-Ig-KuQw)L}3_=VN%#2D5OoEKef{g#qFt9NQFbe#?#lXYN$iO7PEC6)&e}+xddM0>%jh$lfRq"
        r">H3>)Pgt-!hsFC4GR(Sp-;tiaCJZV`OC#akMKdZ~S%T8%RPBBEihaXwN7nB(kj9byo9&^7%zba!epO@qIrQziU7-"
        r"ip`!WPWW>Ns`2)U%LMoz-rcOXr~&3Y24)5Z27zn-$!PWos258dK(j|cy8bD;i2~|cj$bEy@kxw1t?>UQ0J#uouK"
    ),
    "YCCK": (
        r"c-"
        r"s4a<NrGbKF5^&q*R6!1|VSif1AOXft8tsg@u_FNU*Z9va$1Uumb@<H#aAbAit21AitoXu$YXvu!xkXprC}Jgp{nTyu7@yxRQ#JoQ"
        r"jN`yd207Mxa)9Hg-M^4n8>%K@mBU!T$pcA{-1t3=%AiN(@YbjLd?JEJ_Ujk1)tHFfg(*f&l{*FfuW-"
        r"03FJ~$;Ay+uvLJ8iIJI^3Frl&AAqv8KzRlhK~^C}Lq|5@z(jVXLJ_0Ji3>TDoi-j64Z8S2#W<;`iIYoATtZSxRZU$(Q_IBE%-"
        r"q7#%Gt%$&E3P(D>x)HEIcAIDmf)JEj=SMtGJ}Jth}PKs=1}Lt-YhOYtrN?Q>RUzF>}_U#Y>hhTfSoDs!f}>Y~8kf$Ie}c4j(ys?D"
        r"&b3r!HN-a`oEv8#iw~eDwIq(`V0LynOZX)8{W=zkUDl^B2fpj10_-"
        r"Fo4xxf<S*U0b_=R9po=YrgD%1K^9g;LpCADK=#B!VI`wR4iTq`3pXC*R5lL!AevNkkxNX)<e}<Ekk`OIBhF(@Wcdv4F@(QvG4Qc4"
        r"0^<+pP6h^hhF|JoANAw!)oneQbx-"
        r"y6@AKDo*hU}OTVMI>y6WnR>FeLyN4;6w^vU{1d#m|(|DM%1w2!~Op}qU+9`Ebl=dTrgbZdKO)xXbQ7wx(EV5_~<@ej-2&)-"
        r"$eDiRpAYx914<GRulug?AXbN1&&*V@$NU(Y+L=F4B-5a?PI1(q!dbgkTc=TEl$pEQu3`2RNnxTqKe"
    ),
    "RGB without markers": (
        r"c-"
        r"s4a<Ns|2X9iYg78Vv}Rv^L3%F4#h!@&*&{M_7}Jc9f}LW2B)g2G}l;=&?QqJn}FiV{+?vhwos!s1FQN^&YPa`JNj4=@OFFbFY7Fb"
        r"4@TxC=5k2{QaY!XVGUz{tu71`JTZ$i&P7w19(?iyNq5s{jKNBQrA-&}yLFK-pTLJOhg$tB|6hBb#twBD+$dh*9Ijg&fLG8xM*GUH"
        r"qV8oK)1r$t5N(At|M*rmmr>WnyY(ZeeNV?BeR??&0Yb91<E99uXOpoRXTBo{^bVTvA$AUQt=q+|t_C-qG1LY4Vh*)27duIcw44B}"
        r"<nrU$Ju4rp;TnZri?N=dMGCj~qRA{KUyqmo8tqdhPm+o3|c5di><+v*#~fzWVs-"
        r"^OvvRzW@07>;EkV9_AnhcLpa02788|s}IC~I=8R-"
        r"KSPV~zZw6gehzD1QhR^ezJ?Fte>N}vC*c1p`B(UY3@i7$KeJ!(GuEHBvVX|(pJAE((keEv%Ki3#SpPHVyndDc!_od_|I4`g1ux~x"
        r"pRQkE0}_4#GxvoQ-^A~AQNNf$*7ZY`HbRu1|IYw2_&dLr{m*Cfr&fkFt^V}EUJI%gB3Q+SNAUkm0590nrT"
    ),
    "4:1:1": (
        r"c-"
        r"s4a<NpH&0WUXCHwH#V1_nkTWcYuZ!I^=TnT3UgnH5N|va+(V^Kh^O0Y5i4CyyY%kdPq1prEjrjJU9fl&GMfgrbC$tgO7eys)^Eij"
        r"tg)jGVk2$Ph-LR(3XaJ`N5(IT1k-Ig-Ku0}O&33_=VN%#4l<OoEKef{g!<FvtVl$;t=@3{b$x#LNP8B?l)LH&DS=0R|>UW@aX!`+"
        r"*(+%GLtq8CV2ag%k}P*@OcV*_8@Kj2b5{<WP3ncu+Lx;s+Juq@pHHE-"
        r"`TlNhwt|bq!4|6H_yD3rj0!7gslT4^OY)kkGL3h{&kql+?8JjLfX!lG3vBipr|yme#iRj?S)0lc!9bHhsp-S&J4gS-Ncbij}K2ZQ"
        r"inV+x8thcO5!><mj>ECr+Nabot8FYu9hwy!G(W<0ns_J%91?)yGetzkL1n{m0K=Ab&A3Ff+mcR(}Zs{lx@~78Z7pzZjXyK?(#}SQ"
        r"QP~gd79e6AOivj2byaoF*>Zc#u=sIOv0DQqe^&F%^@CsvkjK1N)3Pk2R6yGq}eP{<_7$!^{YbJZ3=#dxoEvJwIIczx!|M^-"
        r"Mddm%sO4+I3g`aIAg#ufSM~s9*9+KG<ddp8HFD%Y5FFzxQ9pmQ8-RZvO7S+G{V>m|p%~zf|-"
        r"|V)l!=%mY8yzbk){`ch*~&FY`w(MuK;ep>%Dwro=8@l*S!iaviB*M97S&HRl&<^SIV0C(O96a"
    ),
    "4:4:0": (
        r"c-"
        r"s4a<NpH&0WUXCHwH#V1_nkTWcYuZ!I^=TnT3UgnH5N|va+(V^Kh^O0Y5i4CyyY%kdPq1prEjrjJU9fl&GMfgrbC$tgO7eys)^Eij"
        r"tg)jGVk2$Ph-LR(3XaJ`N5(IT1k-Ig-Ku0}O&33_=VN%#1<|OoEKef{g!<FvtVl$;t=@3{b$x#LNP8B?l)LH&DS=0R|>UW@aX!`+"
        r"*(+%GLtq8CV2ag%k}P*@OcV*_8@Kj2b5{<WP3ncu+Lx;s+Juq@pHHE-"
        r"`TlNhwt|bq!4|6H_yD3rj0!7gslT4^OY)kkGL3h{&kql+?8JjLfX!lG3vBipr|yme#iRj?S)0lc!9bHhsp-S&J4gS-Ncbij}K2ZQ"
        r"inV+x8thcO5!><mj>ECr+Nabot8FYu9hwy!G(W<0ns_J%91?)yGetzkL1n{m0K=Ab&A3Ff+mcR(}Zs{lx@~78Z7pzZjXyK?(#}SQ"
        r"QP~gd79e6AOivj2byaoF*>Zc#u=sIOv0DQqe^&F%^@CsvkjK1N)3Pk2R6yGq}eP{<_7$!^{YbJZ3=#dxoEvJwIIczx!|MTPy#zU3"
        r"KrjthbW5{N&R+?c4V(eAN%f+L!+d-"
        r"}2H<>gDhKmv$}e{cQJI@6q19kDD*mm|p%~zqHzK^22rWcmLI1Cvo{5SeMb4DSmdLe^#uY(D)~JdWqFtRpI`r^;+7i*zcy^<=gG)^"
        r"7v`|sjk<J-z&?V|K9`v+%OJe"
    ),
}


@dataclass(frozen=True)
class Odd:
    """A file. error: it is refused. deep: its samples have 16 bits, of which the high byte counts. same_as: a file with
    the same pixels, where Pillow itself raises an error."""

    data: bytes
    error: bool = False
    deep: bool = False
    off: int = 0  # how far pixels may be from Pillow's: decoders of lossy files round differently
    same_as: bytes = b""

    @property
    def right(self) -> npt.NDArray[np.uint8]:
        """The pixels, (height, width, 3)."""
        made = Image.open(io.BytesIO(self.same_as or self.data))
        if self.deep and made.mode.startswith("I"):  # Pillow clips grey of 16 bits
            made = Image.fromarray((np.asarray(made).astype(np.uint16) >> 8).astype(np.uint8))
        return np.asarray(ImageOps.exif_transpose(made).convert("RGB"))


# ------------------------------------------------------------------------------------------------ EXIF


def tiff(kind: int = 3, value: bytes = struct.pack("<HH", 6, 0), count: int = 1, big: bool = False) -> bytes:
    """EXIF data with one entry, the orientation. value: its four bytes, or what lies after the directory."""
    order = ">" if big else "<"
    head = (b"MM\0*" if big else b"II*\0") + struct.pack(order + "I", 8)
    entry = struct.pack(order + "HHHI", 1, 0x112, kind, count)
    if len(value) <= 4:
        return head + entry + value.ljust(4, b"\0") + bytes(4)
    return head + entry + struct.pack(order + "I", 8 + 2 + 12 + 4) + bytes(4) + value


XMP = b'<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
TIFFS = {
    "SHORT": tiff(),
    "SHORT, big-endian": tiff(value=struct.pack(">HH", 8, 0), big=True),
    "BYTE": tiff(1, b"\6"),
    "LONG": tiff(4, struct.pack("<I", 6)),
    "SSHORT": tiff(8, struct.pack("<HH", 6, 0)),
    "SLONG": tiff(9, struct.pack("<I", 6)),
    "RATIONAL": tiff(5, struct.pack("<II", 12, 2)),
    "two values": tiff(3, struct.pack("<HH", 6, 6), count=2),
    "ASCII": tiff(2, b"6\0", count=2),
    "orientation 9": tiff(value=struct.pack("<HH", 9, 0)),
    "cut off": tiff()[:17],
}
NO_TIFFS = {"that is no TIFF file": b"II\xe1\0" + tiff()[4:], "cut off in its head": tiff()[:6]}

# ------------------------------------------------------------------------------------------------ JPEG


def after_soi(data: bytes, *segments: tuple[int, bytes]) -> bytes:
    """A JPEG file with segments (marker, content) before all others."""
    made = b"".join(struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content for marker, content in segments)
    return data[:2] + made + data[2:]


def without(data: bytes, marker: int) -> bytes:
    """A JPEG file without the segments of one marker."""
    made, at = data[:2], 2
    while data[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        made += b"" if data[at + 1] == marker else data[at:end]
        at = end
    return made + data[at:]


def jpegs() -> dict[str, Odd]:
    pixels = picture(WIDTH, HEIGHT, seed=7)
    plain, cmyk = encoded(pixels), encoded(pixels, mode="CMYK")
    made = {name: Odd(zlib.decompress(base64.b85decode(text)), off=2) for name, text in OF_LIBJPEG.items()}
    several = io.BytesIO()
    Image.fromarray(pixels).save(several, "MPO", save_all=True, append_images=[Image.fromarray(255 - pixels)])
    sof = plain.index(b"\xff\xc0")
    made |= {
        "grey": Odd(encoded(pixels, mode="L"), off=2),
        "4:4:4": Odd(encoded(pixels, subsampling=0), off=2),
        "4:2:0": Odd(encoded(pixels, subsampling=2), off=2),
        "progressive": Odd(encoded(pixels, progressive=True), off=2),
        "CMYK": Odd(cmyk, off=2),
        "CMYK without a marker of Adobe": Odd(without(cmyk, 0xEE), off=2),
        "YCCK without a marker of Adobe": Odd(without(made["YCCK"].data, 0xEE), off=2),
        "12 bit": Odd(plain[: sof + 4] + b"\x0c" + plain[sof + 5 :], error=True),
        "MPO": Odd(several.getvalue(), off=2),
        "zeros after the end": Odd(plain + bytes(100), off=2),
        "text after the end": Odd(plain + b"hello", off=2),
        "half": Odd(plain[: len(plain) * 2 // 3], error=True),
        "no end": Odd(plain[:-2], error=True),
        "half of the end": Odd(plain[:-1], error=True),
        "text in place of the end": Odd(plain[:-2] + b"hello", off=2),
        "XMP": Odd(after_soi(plain, (0xE1, b"http://ns.adobe.com/xap/1.0/\0" + XMP)), off=2),
        "EXIF after XMP": Odd(
            after_soi(plain, (0xE1, b"http://ns.adobe.com/xap/1.0/\0<x/>"), (0xE1, b"Exif\0\0" + tiff())), off=2
        ),
    }
    exif = TIFFS | NO_TIFFS
    made |= {f"EXIF {name}": Odd(after_soi(plain, (0xE1, b"Exif\0\0" + t)), off=2) for name, t in exif.items()}
    return made


# ------------------------------------------------------------------------------------------------ PNG

SIGNATURE = b"\x89PNG\r\n\x1a\n"
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
PASSES = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]


def chunk(name: bytes, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def packed(samples: npt.NDArray[Any], depth: int) -> bytes:
    """Rows of samples, each with a filter byte, 0 to 4 in turn (all with the bytes of filter 0: noise to a decoder)."""
    rows = []
    for k, row in enumerate(samples.reshape(samples.shape[0], -1)):
        if depth == 16:
            data = row.astype(">u2").tobytes()
        elif depth == 8:
            data = row.astype(np.uint8).tobytes()
        else:
            bits = (row.astype(np.uint8)[:, None] >> np.arange(depth - 1, -1, -1)) & 1
            data = np.packbits(bits.reshape(-1)).tobytes()
        rows.append(bytes([k % 5 if depth >= 8 else 0]) + data)
    return b"".join(rows)


def frame(k: int, width: int, height: int, x: int = 0, y: int = 0) -> bytes:
    """The chunk before a frame of an animation."""
    return chunk(b"fcTL", struct.pack(">5IHHBB", k, width, height, x, y, 1, 10, 1, 1))


def png(
    depth: int,
    colour: int,
    interlaced: bool = False,
    before: bytes = b"",
    after: bytes = b"",
    end: bytes = b"",
    sides: tuple[int, int] = (WIDTH, HEIGHT),
) -> bytes:
    """A picture of noise. sides: of what the data cover."""
    width, height = sides
    most = 2**depth if colour != 3 else min(2**depth, 5)
    samples = np.random.default_rng(depth * 10 + colour).integers(0, most, (height, width, CHANNELS[colour]))
    if interlaced:
        passes = [samples[y::down, x::across] for x, y, across, down in PASSES]
        data = b"".join(packed(part, depth) for part in passes if part.size)
    else:
        data = packed(samples, depth)
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", WIDTH, HEIGHT, depth, colour, 0, 0, int(interlaced)))
    palette = chunk(b"PLTE", bytes(range(10, 10 + 3 * 5))) if colour == 3 else b""
    body = zlib.compress(data)
    parts = chunk(b"IDAT", body[:40]) + chunk(b"IDAT") + chunk(b"IDAT", body[40:])
    return SIGNATURE + head + palette + before + parts + after + (end or chunk(b"IEND"))


def apngs() -> dict[str, Odd]:
    """The picture is the first frame, or none of the frames."""

    def moving(before: bytes, after: bytes = b"", **options: Any) -> bytes:
        return png(**{"depth": 8, "colour": 2, "before": before, "after": after} | options)

    part, some = (10, 7, 3, 5), {"sides": (10, 7)}
    one, two, whole = (chunk(b"acTL", struct.pack(">II", n, 0)) for n in (1, 2, 0))
    data = zlib.compress(packed(np.full((7, 10, 3), 200), 8))

    def second(k: int) -> bytes:
        return frame(k, *part) + chunk(b"fdAT", struct.pack(">I", k + 1) + data)

    return {
        "APNG": Odd(moving(two + frame(0, WIDTH, HEIGHT), second(1))),
        "APNG, the picture is no frame": Odd(moving(one, second(0))),
        "APNG, a frame without an animation": Odd(moving(frame(0, *part), **some)),
        "APNG of no frames": Odd(moving(whole + frame(0, *part), second(1), **some)),
        "APNG, two frames before the picture": Odd(moving(two + frame(0, WIDTH, HEIGHT) + frame(1, *part), **some)),
        **{
            f"APNG, the first frame covers a part, {depth} bits, colour {colour}": Odd(
                moving(two + frame(0, *part), second(1), depth=depth, colour=colour, **some), deep=depth == 16
            )
            for depth, colour in ((1, 0), (16, 0), (8, 3), (8, 2), (8, 4), (16, 6))
        },
        "APNG, the first frame covers a part, Adam7": Odd(
            moving(two + frame(0, *part), second(1), interlaced=True, **some)
        ),
        "APNG, a frame outside": Odd(moving(two + frame(0, 10, 7, 15, 5), second(1), **some), error=True),
        "APNG, a frame too high for its number": Odd(moving(two + frame(0, 10, 7, 0, 2**32 - 1), **some), error=True),
        "APNG, a frame of no pixels": Odd(moving(two + frame(0, 0, 7), second(1)), error=True),
        "APNG, data of the whole picture for a part": Odd(moving(two + frame(0, *part), second(1)), error=True),
        "APNG, a wrong number": Odd(moving(two + frame(1, WIDTH, HEIGHT)), error=True),
        "APNG, a wrong number of data": Odd(moving(one + frame(0, WIDTH, HEIGHT), second(1) + second(2)), error=True),
        "APNG, two animations, the second frame has a wrong number": Odd(
            moving(two + two + frame(0, WIDTH, HEIGHT), second(2)), error=True
        ),
        "APNG, wrong numbers after the first frame of two": Odd(moving(two + frame(0, WIDTH, HEIGHT), second(9))),
    }


def pngs() -> dict[str, Odd]:
    made = {}
    for depth, colour in (
        [(d, 0) for d in (1, 2, 4, 8, 16)]
        + [(d, 3) for d in (1, 2, 4, 8)]
        + [(d, c) for c in (2, 4, 6) for d in (8, 16)]
    ):
        made[f"{depth} bits, colour {colour}"] = Odd(png(depth, colour), deep=depth == 16)
        made[f"{depth} bits, colour {colour}, Adam7"] = Odd(png(depth, colour, True), deep=depth == 16)
    profile = b"\nexif\n%8d\n" % (len(tiff()) + 6) + (b"Exif\0\0" + tiff()).hex().encode() + b"\n"
    xmp = b"XML:com.adobe.xmp\0\0\0\0\0" + XMP
    plain = png(8, 2)
    idat = plain.index(b"IDAT")
    made |= {
        "tRNS of a palette": Odd(png(8, 3, before=chunk(b"tRNS", b"\0\x80"))),
        "tRNS of a colour": Odd(png(8, 2, before=chunk(b"tRNS", bytes(6)))),
        "tRNS of a grey": Odd(png(8, 0, before=chunk(b"tRNS", bytes(2)))),
        "gamma": Odd(png(8, 2, before=chunk(b"gAMA", struct.pack(">I", 100000)))),
        "eXIf": Odd(png(8, 2, before=chunk(b"eXIf", tiff()))),
        "eXIf after the pixels": Odd(png(8, 2, after=chunk(b"eXIf", tiff(4, struct.pack("<I", 3))))),
        "EXIF as text": Odd(png(8, 2, after=chunk(b"tEXt", b"Raw profile type exif\0" + profile))),
        "EXIF as compressed text": Odd(
            png(8, 2, before=chunk(b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(profile)))
        ),
        "XMP": Odd(png(8, 2, before=chunk(b"iTXt", xmp))),
        "text after the end": Odd(plain + b"hello"),
        "wrong CRC of a text": Odd(png(8, 2, before=chunk(b"tEXt", b"a\0b")[:-4] + bytes(4)), error=True),
        "wrong CRC of a text after the pixels": Odd(png(8, 2, after=chunk(b"tEXt", b"a\0b")[:-4] + bytes(4))),
        "EXIF as text without digits": Odd(
            png(8, 2, after=chunk(b"tEXt", b"Raw profile type exif\0" + profile.replace(b"4", b"g"))), same_as=plain
        ),
        "EXIF as text with a wrong end": Odd(
            png(8, 2, after=chunk(b"tEXt", b"Raw profile type exif\0" + profile + b"\xff")), same_as=plain
        ),
        "EXIF as text with a line that splits a byte": Odd(
            png(8, 2, after=chunk(b"tEXt", b"Raw profile type exif\0" + profile[:-3] + b"\n" + profile[-3:]))
        ),
        **{f"EXIF {name}": Odd(png(8, 2, before=chunk(b"eXIf", t)), same_as=plain) for name, t in NO_TIFFS.items()},
        "wrong CRC of the header": Odd(plain[:29] + bytes(4) + plain[33:], error=True),
        "half": Odd(plain[: idat + 400], error=True),
        "no end": Odd(png(8, 2, end=b"\0")),
        "no CRC of the pixels": Odd(plain[:-16]),
        "no palette": Odd(png(8, 3).replace(b"PLTE", b"pLTE"), error=True),
        "17 bits": Odd(plain[:24] + b"\x11" + plain[25:], error=True),
        **apngs(),
    }
    return made


# ------------------------------------------------------------------------------------------------ WebP and others


def webp(pixels: npt.NDArray[np.uint8], **options: Any) -> bytes:
    return encoded(pixels, "WEBP", **options)


def webps() -> dict[str, Odd]:
    pixels = picture(WIDTH, HEIGHT, seed=11)
    alpha = np.dstack([pixels, np.arange(WIDTH * HEIGHT).reshape(HEIGHT, WIDTH) % 256]).astype(np.uint8)
    frames = [Image.fromarray(pixels), Image.fromarray(255 - pixels)]
    moving, cleared = io.BytesIO(), io.BytesIO()
    frames[0].save(moving, "WEBP", save_all=True, append_images=frames[1:], lossless=True)
    clear = Image.new("RGBA", (WIDTH, HEIGHT))
    clear.paste(frames[0].crop((0, 0, 10, 8)), (6, 4))
    clear.save(cleared, "WEBP", save_all=True, append_images=[frames[1].convert("RGBA")], lossless=True)
    lossless = webp(pixels, lossless=True)
    white = bytearray(cleared.getvalue())
    at = white.index(b"ANIM") + 8
    white[at : at + 4] = b"\xff" * 4
    return {
        "lossy": Odd(webp(pixels), off=2),
        "lossless": Odd(lossless),
        "lossy with alpha": Odd(webp(alpha, mode="RGBA"), off=2),
        "lossless with alpha": Odd(webp(alpha, mode="RGBA", lossless=True, exact=True)),
        "animated": Odd(moving.getvalue()),
        "animated, the first frame covers a part": Odd(cleared.getvalue()),
        "animated, the first frame covers a part, a white background": Odd(bytes(white)),
        "EXIF": Odd(webp(pixels, lossless=True, exif=b"Exif\0\0" + tiff())),
        "EXIF without a head": Odd(webp(pixels, lossless=True, exif=tiff())),
        **{f"EXIF {name}": Odd(webp(pixels, lossless=True, exif=t), same_as=lossless) for name, t in NO_TIFFS.items()},
        "XMP": Odd(webp(pixels, lossless=True, xmp=XMP)),
        "half": Odd(lossless[: len(lossless) // 2], error=True),
        "text after the end": Odd(lossless + b"hello"),
    }


def others() -> dict[str, Odd]:
    """Formats that Pillow knows. Servers and native workers leave them to Python."""
    pixels = picture(WIDTH, HEIGHT, seed=13)
    small = Image.fromarray(pixels).quantize(8)
    clear, part = io.BytesIO(), io.BytesIO()
    small.save(clear, "GIF", transparency=0)
    small.save(part, "GIF", save_all=True, append_images=[Image.fromarray(255 - pixels).quantize(8)])
    return {
        "GIF": Odd(encoded(pixels, "GIF")),
        "GIF with a transparent colour": Odd(clear.getvalue()),
        "GIF, animated": Odd(part.getvalue()),
        "BMP": Odd(encoded(pixels, "BMP")),
        "TIFF": Odd(encoded(pixels, "TIFF")),
        "ICO": Odd(encoded(pixels, "ICO", mode="RGBA")),
        "no picture": Odd(b"no picture", error=True),
        "empty": Odd(b"", error=True),
    }


NATIVE = {
    f"{form}: {name}": odd
    for form, of in (("JPEG", jpegs), ("PNG", pngs), ("WebP", webps))
    for name, odd in of().items()
}
OTHERS = {f"other: {name}": odd for name, odd in others().items()}
FILES = NATIVE | OTHERS
