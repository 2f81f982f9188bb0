package decode

import (
	"fmt"
	"runtime"
	"slices"

	"github.com/stocached/stocached/internal/size"
	"github.com/stocached/stocached/source"
)

// options are the settings of a cache under `decode:`.
type options struct {
	Resize    []int      `key:"resize"`     // height, width
	Layout    string     `key:"layout"`     // chw or hwc
	Field     string     `key:"field"`      // name of the field with the encoded image
	MaxPixels int        `key:"max_pixels"` // width times height of an encoded image, and of what is made of it
	Fit       string     `key:"fit"`        // stretch, crop or pad
	Memory    size.Bytes `key:"memory"`     // limit of all readers together
	// error, or skip: a file that does not decode is a source.BadError, and clients may leave it out.
	BadSamples string `key:"bad_samples"`
	Store      string `key:"store"` // what a cache keeps: decoded, encoded, or auto: the one whose epochs are shorter
}

var fits = []string{"stretch", "crop", "pad"} // in the order of enum stoc_image_fit

// request is a frame with these options.
func (o *options) request() request {
	r := request{MaxPixels: uint64(o.MaxPixels), Height: uint32(o.Resize[0]), Width: uint32(o.Resize[1]),
		Fit: uint32(slices.Index(fits, o.Fit))}
	if o.Layout == "hwc" {
		r.Layout = 1
	}
	return r
}

// forClients says how clients make the same pictures of files (docs/spec/stores.md, In a server).
func (o *options) forClients() string {
	return fmt.Sprintf("height=%d width=%d fit=%s layout=%s max_pixels=%d bad_samples=%s", o.Resize[0], o.Resize[1],
		o.Fit, o.Layout, o.MaxPixels, o.BadSamples)
}

// The parts of the memory: for encoded files, for the process of each core, and for pictures that need more than
// their process has.
func (o *options) forFiles() int64   { return int64(o.Memory) / 4 }
func (o *options) forProcess() int64 { return int64(o.Memory) / 4 / int64(runtime.GOMAXPROCS(0)) }
func (o *options) forLarge() int64   { return int64(o.Memory) / 2 }

const (
	defaultMaxPixels = 64 << 20 // 8192 x 8192
	defaultMemory    = 1 << 30
	leastMemory      = 16 << 20
	mostMemory       = 1 << 50
	mostPixels       = 1 << 30
	mostResize       = 8192      // height and width: as many pixels are kept for each row of a file
	mostEncoded      = 512 << 20 // bytes of a file
)

func parse(settings map[string]any) (options, error) {
	o := options{Layout: "chw", MaxPixels: defaultMaxPixels, Fit: "stretch", Memory: defaultMemory,
		BadSamples: "error", Store: "decoded"}
	if err := source.Settings(settings).Decode(&o); err != nil {
		return o, err
	}
	switch {
	case len(o.Resize) != 2:
		return o, fmt.Errorf("%w: resize is %v, but must be [height, width]: all samples have one size",
			source.ErrInvalid, o.Resize)
	case min(o.Resize[0], o.Resize[1]) < 1 || max(o.Resize[0], o.Resize[1]) > mostResize:
		return o, fmt.Errorf("%w: resize is %v, but each must be in 1..%d", source.ErrInvalid, o.Resize, mostResize)
	case o.Layout != "chw" && o.Layout != "hwc":
		return o, fmt.Errorf("%w: layout is %q, but must be chw (planes, like torch) or hwc (pixels)",
			source.ErrInvalid, o.Layout)
	case !slices.Contains(fits, o.Fit):
		return o, fmt.Errorf("%w: fit is %q, but must be stretch (each side by itself), crop (the short side, "+
			"then the centre) or pad (the whole picture, with black around it)",
			source.ErrInvalid, o.Fit)
	case o.BadSamples != "error" && o.BadSamples != "skip":
		return o, fmt.Errorf("%w: bad_samples is %q, but must be error or skip (clients may leave out a file that "+
			"does not decode)", source.ErrInvalid, o.BadSamples)
	case !slices.Contains([]string{"decoded", "encoded", "auto"}, o.Store):
		return o, fmt.Errorf("%w: store is %q, but must be decoded (the cache keeps pictures), encoded (it keeps files, "+
			"and clients decode them) or auto (the server measures, and chooses)", source.ErrInvalid, o.Store)
	case o.Memory < leastMemory || o.Memory > mostMemory:
		return o, fmt.Errorf("%w: memory is %d bytes, but must be in 16MiB..1024TiB", source.ErrInvalid, o.Memory)
	case o.MaxPixels < 1 || o.MaxPixels > mostPixels:
		return o, fmt.Errorf("%w: max_pixels is %d, but must be in 1..%d", source.ErrInvalid, o.MaxPixels, mostPixels)
	case o.Resize[0]*o.Resize[1] > o.MaxPixels:
		return o, fmt.Errorf("%w: resize is %v: %d pixels, more than max_pixels, %d", source.ErrInvalid, o.Resize,
			o.Resize[0]*o.Resize[1], o.MaxPixels)
	}
	return o, nil
}
