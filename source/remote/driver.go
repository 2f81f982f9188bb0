package remote

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strconv"
	"strings"

	"github.com/stocached/stocached/source"
)

// Driver sends requests to one kind of server. It is safe for concurrent use. Names are addresses.
// Its errors wrap ErrUnavailable, fs.ErrNotExist, fs.ErrPermission, ErrChanged or ErrInvalid, and have
// no credentials in their texts.
type Driver interface {
	// Get asks for n bytes from offset on, n at least 1. tag, if not empty, is the only tag that the
	// object may have, else the error is ErrChanged.
	Get(ctx context.Context, name string, offset int64, n int, tag string) (Answer, error)
	// Head asks for the state of an object. Its answer has no body. It has -1 bytes if the server does not say
	// how many the object has.
	Head(ctx context.Context, name string) (Answer, error)
	// List asks for a page of the objects whose names begin with prefix, in any order. from is Next of the page
	// before, or "" for the first one. It calls alive when bytes of the answer come.
	List(ctx context.Context, prefix, from string, alive func()) (Page, error)
	// Close closes idle connections.
	Close()
}

// Answer describes an object, with some of its bytes.
type Answer struct {
	Bytes int64         // length of the whole object
	Tag   string        // names the state of the object, as Tag does; "": the server gives none
	Body  io.ReadCloser // nil for Head
}

// Page is a part of a list of objects.
type Page struct {
	Objects []Object
	Next    string // names the next page; "": this is the last one
}

// Object is an object in a list.
type Object struct {
	Name  string
	Bytes int64
	Tag   string
}

// Tag returns the tag of an answer: its ETag as it was sent, with quotes, else its Last-Modified.
func Tag(h http.Header) string { return cmp.Or(h.Get("ETag"), h.Get("Last-Modified")) }

// IsStrong says whether a tag is an ETag that If-Match takes.
func IsStrong(tag string) bool { return strings.HasPrefix(tag, `"`) }

// stamp returns the stamp of an object: the same from a bucket and from a web server that gives the bucket's
// tags, so that both take the same index of a shard.
func stamp(bytes int64, tag string) source.Stamp {
	if tag == "" {
		return source.Stamp{Bytes: bytes}
	}
	sum := sha256.Sum256([]byte(strings.Trim(tag, `"`)))
	return source.Stamp{Bytes: bytes, ModifiedNs: int64(binary.LittleEndian.Uint64(sum[:]) >> 1)}
}

// AnsweredBytes returns the bytes of the whole object from an answer to a request for n bytes from offset on. contentRange
// is such as "bytes 0-9/100"; "": the answer is the whole object. It is an error if the answer begins elsewhere, as its bytes
// would be those of another sample, and if the whole object came and is not what was asked for. bytes is its length; -1: the
// server does not say.
func AnsweredBytes(contentRange string, offset int64, n int, bytes int64) (int64, error) {
	if contentRange == "" {
		if offset != 0 || bytes < 0 || bytes > int64(n) {
			return 0, fmt.Errorf("the server answered a request for a part with the whole (bytes: %d; -1: it does not say); use a "+
				"server that knows ranges, as nginx does, and Python's http.server does not", bytes)
		}
		return bytes, nil
	}
	span, whole, _ := strings.Cut(strings.TrimPrefix(contentRange, "bytes "), "/")
	first, _, _ := strings.Cut(span, "-")
	at, errAt := strconv.ParseInt(first, 10, 64)
	bytes, err := strconv.ParseInt(whole, 10, 64)
	if err != nil || errAt != nil || at != offset {
		return 0, fmt.Errorf("the server answered the range %q to a request for bytes from %d on", contentRange, offset)
	}
	return bytes, nil
}

// StatusError returns the error of an answer with this status. said is what the server answered.
func StatusError(name string, status int, said string) error {
	kind, next := source.ErrInvalid, ""
	switch {
	case status == http.StatusNotFound || status == http.StatusGone:
		kind = fs.ErrNotExist
	case status == http.StatusUnauthorized || status == http.StatusForbidden || status == http.StatusProxyAuthRequired:
		kind, next = fs.ErrPermission, "; check the credentials and what they permit"
	case status == http.StatusPreconditionFailed || status == http.StatusRequestedRangeNotSatisfiable:
		kind, next = source.ErrChanged, "; stocached reload begins an empty cache of the new data"
	case status == http.StatusRequestTimeout || status == http.StatusTooManyRequests ||
		status >= 500 && status != http.StatusNotImplemented:
		kind = source.ErrUnavailable
	}
	return fmt.Errorf("%w: %s: the server answered %d %s%s", kind, name, status, said, next)
}
