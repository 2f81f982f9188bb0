package decode

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math/bits"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stocached/stocached/source"
)

// Beginning is how files of a kind begin. A ? stands for any byte.
type Beginning struct{ Kind, Bytes string }

// Beginnings has the kinds of pictures that messages name. cimage/src/kinds.h is generated from it.
var Beginnings = []Beginning{
	{"JPEG", "\xff\xd8\xff"},
	{"PNG", "\x89PNG\r\n\x1a\n"},
	{"WebP", "RIFF????WEBPVP8 "}, {"WebP", "RIFF????WEBPVP8L"}, {"WebP", "RIFF????WEBPVP8X"},
	{"GIF", "GIF8"},
	{"BMP", "BM"},
	{"TIFF", "II*\x00"}, {"TIFF", "MM\x00*"},
	{"AVIF", "????ftypavif"},
	{"HEIC", "????ftyphei"}, {"HEIC", "????ftypmif1"},
	{"JPEG XL", "\xff\x0a"}, {"JPEG XL", "????JXL "},
	{"JPEG 2000", "????jP  "},
	{"ICO", "\x00\x00\x01\x00"},
}

// unknown is the kind of a file that is none of Beginnings.
const unknown = "unknown"

// kindOf names the kind of a picture by its first bytes.
func kindOf(file []byte) string {
	for _, b := range Beginnings {
		if len(file) >= len(b.Bytes) && b.begins(file) {
			return b.Kind
		}
	}
	return unknown
}

func (b Beginning) begins(file []byte) bool {
	for k := range len(b.Bytes) {
		if b.Bytes[k] != '?' && b.Bytes[k] != file[k] {
			return false
		}
	}
	return true
}

// Kind is what Kinds has counted of one kind.
type Kind struct {
	Name  string // "unknown": none that Beginnings has
	Files int
	First int    // the sample with the lowest index
	Where string // its place, as Source.Where
}

// Decoded says whether stocached-decode takes such pictures.
func (k Kind) Decoded() bool { return slices.Contains([]string{"JPEG", "PNG", "WebP"}, k.Name) }

// Other says whether a server leaves such pictures to Python clients.
func (k Kind) Other() bool { return k.Name != unknown && !k.Decoded() }

// Kinds is a source that counts the pictures that are read of another one.
type Kinds struct {
	source.Source
	mu  sync.Mutex
	all map[string]Kind
}

// wantKind is the key in a context of where a read of a decoded picture puts the kind of the file.
type wantKind struct{}

// KindsOf returns s as a source that counts. nil: New has not made s.
func KindsOf(s source.Source) *Kinds {
	switch s.(type) {
	case *pictures, pictureBlocks, *files, fileBlocks, *Both:
		return &Kinds{Source: s, all: map[string]Kind{}}
	}
	return nil
}

// List returns the kinds, the most frequent first.
func (c *Kinds) List() []Kind {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.SortedFunc(maps.Values(c.all), func(a, b Kind) int {
		return cmp.Or(b.Files-a.Files, strings.Compare(a.Name, b.Name))
	})
}

func (c *Kinds) Read(ctx context.Context, i int, dst []byte) (int, error) {
	name, info := "", c.Info()
	n, err := c.Source.Read(context.WithValue(ctx, wantKind{}, &name), i, dst)
	if err == nil && info.Decode != "" {
		if parts, err := info.Schema.Split(dst[:n]); err == nil {
			name = kindOf(parts[0].Data)
		}
	}
	if name == "" || ended(ctx, err) {
		return n, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	k, again := c.all[name]
	if !again || i < k.First {
		k.Name, k.First, k.Where = name, i, c.Where(i)
	}
	k.Files++
	c.all[name] = k
	return n, err
}

// ended says whether err is that of a read which the end of ctx ended.
func ended(ctx context.Context, err error) bool {
	return ctx.Err() != nil && errors.Is(err, context.Cause(ctx))
}

// The limits of a look.
const (
	mostLooked = 256 // files
	lookTime   = 5 * time.Second
)

// Looked is what Look has seen.
type Looked struct {
	Samples int    // samples of the source
	Files   int    // files that were read
	Kinds   []Kind // kinds of these files
	Failed  int    // files that cannot be read, or do not decode
	Err     error  // the first failure
}

// Look reads files that are spread over the source.
func (c *Kinds) Look(ctx context.Context, readers int) Looked {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	l := Looked{Samples: c.Info().Samples}
	var mu sync.Mutex // protects l
	_ = source.Each(ctx, min(l.Samples, mostLooked), readers, 1, func(ctx context.Context, i int) error {
		if l.Samples > mostLooked { // the first few are spread, too: there may be no time for more
			i = int(uint64(bits.Reverse8(uint8(i))) * uint64(l.Samples) / mostLooked)
		}
		n, err := c.Size(i)
		if err == nil {
			_, err = c.Read(ctx, i, make([]byte, n))
		}
		if ended(ctx, err) {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		l.Files++
		if err != nil && !source.IsOtherKind(err) {
			l.Failed++
			l.Err = cmp.Or(l.Err, err)
		}
		return nil
	}) // the end of the time is no error
	l.Kinds = c.List()
	return l
}
