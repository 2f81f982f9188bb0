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
// The program stocached-decode decodes and resizes JPEG, PNG and WebP files, as docs/spec/image.md says: this package
// starts it, and has no decoder of its own. docs/spec/decode.md is the protocol.
//
// # Untrusted files
//
// max_pixels, 64 Mi by default, bounds width times height before a decoder starts. The helper runs under a filter of
// system calls and limits of memory and time.
//
// memory, 1 GiB by default, bounds the memory of all readers of the source together: a quarter for
// files, a quarter for the helpers, and half for pictures for which a helper's part is too little. These wait until
// so much is free. A picture that needs more than the half is an error that names the limit.
//
// Damaged, truncated and too large files, and files of other formats, are source.ErrCorrupt with the file's name. The
// end of the reader's context ends decoding.
package decode
