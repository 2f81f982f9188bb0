package tar

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/stocached/stocached/source"
)

const (
	walkBuffer = 4 << 10 // bytes of one read in a walk: the end of a member, the next header, and often a small member
	mostTail   = 1 << 20 // bytes after the end of an archive that are checked

	// A walk of an object begins with reads of leastRemote, which cost as much as one of a header, and reads
	// up to mostRemote while members are small. It skips the data of a member from jump on: to read on costs
	// 1.5 times as much as its bytes alone, at 20 ms a request and 1 Gbit/s, and a request as much as 2 MiB.
	// Several walks share the link, and not the latency, so jump is less than 2/1.5 MiB.
	leastRemote = 64 << 10
	mostRemote  = 4 << 20
	jump        = 1 << 20
)

// walk makes the index of a shard: it reads headers and skips data. Errors: ErrInvalid for a file
// that is no shard, ErrCorrupt for a damaged one, with its last complete member.
func walk(ctx context.Context, f *source.File) (*builder, error) {
	w := &walker{ctx: ctx, f: f, next: walkBuffer, most: walkBuffer}
	if source.IsRemote(f.Path) {
		w.next, w.most = leastRemote, mostRemote
	}
	b := newBuilder(f.Stamp)
	head := make([]byte, min(blockBytes, f.Stamp.Bytes))
	if err := f.ReadAt(ctx, head, 0); err != nil {
		return nil, err
	}
	if len(head) == 0 {
		return nil, fmt.Errorf("%w: %s is empty; an archive has at least 1024 bytes", source.ErrCorrupt, f.Path)
	}
	if err := refuseCompressed(f.Path, head); err != nil {
		return nil, err
	}
	archive, last, end := tar.NewReader(w), "", int64(0)
	for {
		h, err := archive.Next()
		ended := false
		if err != nil && w.err == nil {
			ended, w.err = w.endsAt(end)
		}
		switch {
		case ended:
			return b, w.tail(b)
		case err == io.EOF && w.pastEnd:
			return nil, fmt.Errorf("%w: %s has no end mark after %s: it was truncated, or its writer did not finish; "+
				"if it is complete, add the mark: truncate -s +1024 %s",
				source.ErrCorrupt, f.Path, memberOr(last, "nothing"), shellQuote(f.Path))
		case err != nil && !errors.Is(err, tar.ErrInsecurePath):
			return nil, w.damaged(err, last)
		}
		if err := w.member(b, h); err != nil {
			return nil, err
		}
		last, end = h.Name, w.at
		if !strings.ContainsRune(withoutData, rune(h.Typeflag)) {
			end += h.Size
		}
		end = (end + blockBytes - 1) / blockBytes * blockBytes
	}
}

// member adds a member after its header was read. The walker is at its data.
func (w *walker) member(b *builder, h *tar.Header) error {
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeCont:
	case tar.TypeGNUSparse:
		return w.sparse(h)
	case tar.TypeLink, tar.TypeSymlink:
		b.links++
		return nil
	case tar.TypeXGlobalHeader:
		return w.global(h)
	default: // folders, devices, volume labels: webdataset skips them too
		return nil
	}
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return w.sparse(h)
		}
	}
	if err := b.add(h.Name, w.at, h.Size); err != nil {
		return fmt.Errorf("%s: %w", w.f.Path, err)
	}
	return nil
}

// withoutData are the types of members without data, whatever size they name.
const withoutData = "123456g"

// ofAll are PAX records that would hold for all members after a global header. Readers of tar differ there.
var ofAll = []string{"path", "size", "linkpath", "GNU.sparse."}

func (w *walker) global(h *tar.Header) error {
	for key := range h.PAXRecords {
		for _, name := range ofAll {
			if strings.HasPrefix(key, name) {
				return fmt.Errorf("%w: %s has a global PAX header that sets %s of all members; make the shard without it",
					source.ErrInvalid, w.f.Path, key)
			}
		}
	}
	return nil
}

// endsAt says whether the archive ends here: with a zero block, and then another one or the end of the file.
func (w *walker) endsAt(at int64) (bool, error) {
	data := make([]byte, min(2*blockBytes, max(w.f.Stamp.Bytes-at, 0)))
	if len(data) < blockBytes {
		return false, nil
	}
	err := w.f.ReadAt(w.ctx, data, at)
	return err == nil && len(bytes.Trim(data, "\x00")) == 0, err
}

func (w *walker) sparse(h *tar.Header) error {
	return fmt.Errorf("%w: %s: member %q is a sparse file, whose data is not contiguous; make the shard without --sparse",
		source.ErrInvalid, w.f.Path, h.Name)
}

// damaged says how far a walk has come.
func (w *walker) damaged(err error, last string) error {
	switch {
	case w.err != nil: // an error of the file, not of its content
		return w.err
	case last == "" && w.headers < 2*blockBytes:
		return fmt.Errorf("%w: %s is not a tar archive: %w", source.ErrInvalid, w.f.Path, err)
	}
	where := "after " + memberOr(last, "its start")
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: %s is truncated at %d bytes, %s; copy it again", source.ErrCorrupt, w.f.Path,
			w.f.Stamp.Bytes, where)
	}
	return fmt.Errorf("%w: %s at about %d of %d bytes, %s: %w; copy it again", source.ErrCorrupt, w.f.Path,
		w.at, w.f.Stamp.Bytes, where, err)
}

func memberOr(name, none string) string {
	if name == "" {
		return none
	}
	return fmt.Sprintf("member %q", name)
}

// tail counts the bytes after the end of the archive, unless they are zeros.
func (w *walker) tail(b *builder) error {
	rest := w.f.Stamp.Bytes - w.at
	if rest <= 0 {
		return nil
	}
	data := make([]byte, min(rest, mostTail))
	if err := w.f.ReadAt(w.ctx, data, w.at); err != nil {
		return err
	}
	if len(bytes.Trim(data, "\x00")) > 0 {
		b.trailing = uint64(rest)
	}
	return nil
}

// walker reads a shard for archive/tar, which skips data with Seek. archive/tar reads no further
// than the header of a member. So after Next the walker's position is the start of the member's
// data.
type walker struct {
	ctx     context.Context
	f       *source.File
	at      int64 // position of the next Read
	headers int64 // bytes that archive/tar has read
	pastEnd bool  // archive/tar has read at the end of the file; with an end mark it stops before
	err     error // error of the file, not of the format

	next, most int64  // bytes of the next read, and the most
	buffer     []byte // bytes of the latest read
	from       int64  // offset of the buffer in the file
}

func (w *walker) Read(dst []byte) (int, error) {
	if w.at >= w.f.Stamp.Bytes {
		w.pastEnd = true
		return 0, io.EOF
	}
	if w.at < w.from || w.at >= w.from+int64(len(w.buffer)) {
		w.buffer = slices.Grow(w.buffer[:0], int(w.next))[:min(w.next, w.f.Stamp.Bytes-w.at)]
		if err := w.f.ReadAt(w.ctx, w.buffer, w.at); err != nil {
			w.buffer, w.err = nil, err
			return 0, err
		}
		w.from, w.next = w.at, min(4*w.next, w.most)
	}
	n := copy(dst, w.buffer[w.at-w.from:])
	w.at += int64(n)
	w.headers += int64(n)
	return n, nil
}

// Seek moves relative to the position. archive/tar needs nothing else.
func (w *walker) Seek(offset int64, whence int) (int64, error) {
	if whence != io.SeekCurrent || w.at+offset < 0 {
		return 0, fmt.Errorf("%s: seek %d from %d", w.f.Path, offset, whence)
	}
	if w.at += offset; offset >= jump {
		w.next = min(leastRemote, w.most)
	}
	return w.at, nil
}
