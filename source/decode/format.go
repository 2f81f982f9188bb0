package decode

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image"
	"image/gif"
	"image/jpeg"
	"image/png"
	"io"

	"golang.org/x/image/webp"
)

// format is a format of image files.
type format struct {
	name   string
	magic  string // the file's first bytes; "?" stands for any
	matrix *matrix
	config func(io.Reader) (image.Config, error)
	decode func(io.Reader) (image.Image, error)
}

var formats = []format{
	{"JPEG", "\xff\xd8\xff", full, jpeg.DecodeConfig, jpeg.Decode},
	{"PNG", "\x89PNG\r\n\x1a\n", nil, png.DecodeConfig, png.Decode},
	{"WebP", "RIFF????WEBP", studio, webp.DecodeConfig, webp.Decode},
	{"GIF", "GIF8?a", nil, gif.DecodeConfig, gif.Decode},
}

func formatOf(file []byte) (*format, error) {
	for k := range formats {
		if f := &formats[k]; f.is(file) {
			return f, nil
		}
	}
	if len(file) == 0 {
		return nil, errors.New("the file is empty")
	}
	return nil, fmt.Errorf("neither JPEG, PNG, WebP nor GIF: it begins with % x", file[:min(len(file), 12)])
}

func (f *format) is(file []byte) bool {
	if len(file) < len(f.magic) {
		return false
	}
	for k := range len(f.magic) {
		if f.magic[k] != '?' && f.magic[k] != file[k] {
			return false
		}
	}
	return true
}

// size returns the width and height in pixels of a file.
func (s *scratch) size(ctx context.Context, f *format, file []byte, maxPixels int) (size image.Point, err error) {
	if s.helpers != nil && f.name == "JPEG" { // the helper knows kinds of JPEG that Go does not
		size, _, _ = frameOf(file)
	}
	if size == (image.Point{}) {
		defer s.survive(&err)
		config, err := f.config(s.open(ctx, file))
		if err != nil {
			return size, truncated(err)
		}
		size = image.Pt(config.Width, config.Height)
	}
	switch {
	case min(size.X, size.Y) < 1:
		return size, fmt.Errorf("%d x %d pixels is no picture", size.X, size.Y)
	case max(size.X, size.Y) > mostSide:
		return size, fmt.Errorf("%d x %d pixels, more than %d on a side", size.X, size.Y, mostSide)
	case size.X*size.Y > maxPixels:
		return size, fmt.Errorf("%d x %d are %d pixels, more than max_pixels, %d", size.X, size.Y, size.X*size.Y, maxPixels)
	}
	return size, nil
}

// image decodes a file of the given size.
func (s *scratch) image(ctx context.Context, f *format, file []byte, size image.Point) (img image.Image, err error) {
	defer s.survive(&err)
	if img, err = f.decode(s.open(ctx, file)); err != nil {
		return nil, truncated(err)
	}
	if b := img.Bounds(); b.Empty() || !b.In(image.Rectangle{Max: size}) {
		return nil, fmt.Errorf("bounds %v in a picture of %d x %d", b, size.X, size.Y)
	}
	return img, nil
}

// survive runs after a decoder, and converts its panic to an error.
func (s *scratch) survive(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("the decoder panicked: %v", p)
	}
	s.input = input{}
}

// truncated explains errors at the end of the file.
func truncated(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the file is truncated: %w", err)
	}
	return err
}

// input is a file for decoders. Reads fail after the end of the context. It has only the method
// Read, because decoders then read large pieces.
type input struct {
	ctx  context.Context
	file bytes.Reader
}

func (s *scratch) open(ctx context.Context, file []byte) io.Reader {
	s.input.ctx = ctx
	s.input.file.Reset(file)
	return &s.input
}

func (in *input) Read(dst []byte) (int, error) {
	if in.ctx.Err() != nil {
		return 0, context.Cause(in.ctx)
	}
	return in.file.Read(dst)
}
