// Package decode makes samples of fixed size out of encoded images: New wraps a source whose samples have an image file in one of their fields into one that
// gives its pixels, three planes of uint8, resized.
//
//	decode: {resize: [256, 256], layout: chw}      # of a cache; further keys: fit, field, max_pixels, memory
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
// gives, and torchvision with it: both sides are resized by themselves, to exactly what is asked for, by a triangle filter that takes every pixel into account when it shrinks, in
// integers. With fit: crop the proportions stay: the picture is resized until it covers what is asked for, and its centre is taken, as torchvision's Resize of the short side and
// CenterCrop do.
//
// The tests compare with Pillow's own results, in levels of 255. PNG, GIF and lossless WebP differ by at most 1, and by nothing where Pillow resizes across before down. JPEG and lossy
// WebP differ by at most 4, by 0.25 on average, and by more than 1 in at most 2 of 100 values: decoders round differently. In particular:
//   - alpha is dropped, not blended with anything: the colours under transparent pixels appear;
//   - an orientation in EXIF data is not applied, colour profiles and gammas are not;
//   - grey images have three equal planes, CMYK and YCCK are converted without a profile;
//   - 16 bits become 8 by the high byte (Pillow clips 16-bit grey instead, which makes nearly everything white);
//   - a JPEG whose end marker is missing is truncated (Pillow takes some of them);
//   - of an animated GIF the first frame is taken, on black where it does not cover the picture; transparent pixels are black. Animated WebP is refused.
//
// # Untrusted files
//
// Width and height are read and compared with limits before anything is decoded: 65,535 each, and max_pixels, 64 Mi by default, in all.
//
// memory, 1 GiB by default, bounds what all readers of the source take together: a quarter is for files, the rest for decoding. Headers tell how much a picture needs at most (need.go):
// 1 to 4 bytes a pixel in most files, 16 in an interlaced PNG of 16 bits with alpha, 5 for each sample of a progressive JPEG. A reader waits for its turn until that is free; garbage
// counts until it is collected. A picture that needs more than there is for all is an error that names the limit. 4 MiB for each reader come on top.
//
// Damaged, truncated and too large files, and those that make a decoder panic, are source.ErrCorrupt with the file's name. An end of the reader's context ends decoding, too.
//
// # Speed
//
// A 500 x 375 JPEG of 74 KB takes 10.3 ms of processor time to become (3, 256, 256), on an Intel Xeon at 2.5 GHz: 97 samples/s a core, and as many on each of two.
// 60 % of that is image/jpeg's, which has no vector instructions (BenchmarkJPEG has both figures). A cache decodes a file once; where that
// is too slow, decode in the readers, with a faster library, and cache its result.
package decode
