// Package decode makes samples of fixed size from encoded images. New wraps a source with image
// files in one field. The result has their pixels: three planes of uint8, resized.
//
//	decode: {resize: [256, 256], layout: chw}      # of a cache; further keys: fit, field, max_pixels, memory, store
//
// Samples have a field `image` of shape (3, H, W) or, with layout hwc, (H, W, 3), in RGB. After it
// come the fields of the inner source that have the same shape in all samples, such as a label.
// Other fields are left out, and a note of Info says so.
//
// With store: encoded the field has the bytes of the file, and clients make the same pictures
// (docs/spec/stores.md). With store: auto the result is a *Both, which measures and chooses.
//
// # Pixels
//
// Formats are JPEG, PNG, WebP and GIF. The content decides, not the name of a file. The result is
// that of Pillow's
//
//	Image.open(f).convert("RGB").resize((W, H), Image.BILINEAR)
//
// and so of torchvision. Both sides are resized independently, to exactly the given size, by a
// triangle filter in integers that uses all pixels when it shrinks. With fit: crop the
// proportions stay: the picture is resized until it covers the given size, and its centre is cut
// out, like torchvision's Resize of the short side and CenterCrop. With fit: pad it has black around
// it.
//
// If the program stocached-decode is there, it decodes JPEG files and resizes all pictures:
// docs/spec/decode.md. What follows is for the decoders of Go.
//
// The tests compare with Pillow's own results, in levels of 255. PNG, GIF and lossless WebP differ
// by at most 1, and are equal if Pillow resizes across before down. JPEG and lossy WebP differ by
// at most 4, by 0.25 on average, and by more than 1 in at most 2 of 100 values, because decoders
// round differently. In particular:
//   - alpha is dropped, not blended: the colours under transparent pixels appear;
//   - the orientation in a JPEG's EXIF data is applied, as by Pillow's ImageOps.exif_transpose; colour
//     profiles and gammas are not;
//   - grey images have three equal planes; CMYK and YCCK are converted without a profile;
//   - 16 bits become 8 by the high byte (Pillow clips 16-bit grey instead, which makes nearly all
//     pixels white);
//   - a JPEG without its end marker is an error (Pillow accepts some of them);
//   - the first frame of an animated GIF is used, on black where it does not cover the picture;
//     transparent pixels are black. Animated WebP is an error.
//
// # Untrusted files
//
// Width and height are compared with limits before the decoder starts: 65,535 each, and max_pixels,
// 64 Mi by default, for their product.
//
// memory, 1 GiB by default, bounds the memory of all readers of the source together: a quarter for
// files, the rest for decoding. Headers tell the most that a picture needs (need.go): 1 to 4 bytes
// a pixel in most files, 16 in an interlaced PNG of 16 bits with alpha, 5 for each sample of a
// progressive JPEG. A reader waits until that memory is free. Garbage counts until it is collected.
// A picture that needs more than the limit is an error that names the limit. Each reader needs 4
// MiB more.
//
// Damaged, truncated and too large files are source.ErrCorrupt with the file's name, and so are
// files that make a decoder panic. The end of the reader's context ends decoding.
//
// A 500 x 375 JPEG of 74 KB takes 10.3 ms of processor time to become (3, 256, 256), on an Intel
// Xeon at 2.5 GHz: 97 samples/s on one core, and as many on each of two. image/jpeg, which has no
// vector instructions, takes 60 % of that (BenchmarkJPEG measures both). A cache decodes a file
// once. stocached-decode takes a quarter of that.
package decode
