// Package decode makes samples of fixed size out of encoded images: New wraps a source whose samples have an image file in one of their fields into one that
// gives its pixels, three planes of uint8, resized.
//
//	decode: {resize: [256, 256], layout: chw}      # of a cache; further keys: field, max_pixels
//
// The samples have a field `image` of shape (3, H, W) or, with layout hwc, (H, W, 3), in RGB; behind it the fields of the inner source whose shape is the same in all
// samples, such as a label. Other fields are left out, and Info has a note of that.
//
// # Pixels
//
// Formats are JPEG, PNG, WebP and GIF, told by content, whatever a file is named. What becomes of them is what Pillow's
//
//	Image.open(f).convert("RGB").resize((W, H), Image.BILINEAR)
//
// gives, and torchvision with it: both sides are resized independently, by a triangle filter that covers what is left out when it shrinks, in integers; PNG, GIF and
// lossless WebP come out bit for bit, JPEG and lossy WebP as near as two decoders are to each other (the tests say how near). In particular:
//   - alpha is dropped, not blended with anything: the colours under transparent pixels appear;
//   - an orientation in EXIF data is not applied, colour profiles and gammas are not;
//   - grey images have three equal planes, CMYK and YCCK are converted without a profile;
//   - 16 bits become 8 by the high byte (Pillow clips 16-bit grey instead, which makes nearly everything white);
//   - of an animated GIF the first frame is taken, on black where it does not cover the picture; transparent pixels are black. Animated WebP is refused.
//
// # Untrusted files
//
// Width and height are read and held against limits before anything is decoded: 65,535 each, and max_pixels, 64 Mi by default, in all. Decoding takes up to 4
// bytes a pixel, a progressive JPEG 15, for each reader. Damaged, truncated and too large files, and those that make a decoder panic, are source.ErrCorrupt with the
// file's name. An end of the reader's context ends decoding, too.
//
// # Speed
//
// On one core of an AMD EPYC (Zen 4, 2.6 GHz), a 500 x 375 JPEG of 76 KB becomes (3, 256, 256) at SPEED samples/s: SHARE of the time is image/jpeg's (BenchmarkJPEG).
package decode
