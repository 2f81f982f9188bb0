package remote

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/stocached/stocached/source"
)

// Transport sends requests. It asks for the bytes of objects as they are, and refuses answers with others.
type Transport struct{ *http.Transport }

// Identity is the value of the header Accept-Encoding in each request.
var Identity = []string{"identity"}

// RoundTrip is part of http.RoundTripper. Errors are ErrInvalid, and those of http.Transport.
func (t Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Header["Accept-Encoding"] == nil {
		r = r.Clone(r.Context())
		r.Header["Accept-Encoding"] = Identity
	}
	a, err := t.Transport.RoundTrip(r)
	if err != nil || a.StatusCode >= http.StatusBadRequest {
		return a, err
	}
	if a.StatusCode >= http.StatusMultipleChoices {
		err = checkRedirect(a)
	} else {
		err = check(r, a)
	}
	if err != nil {
		a.Body.Close()
		return nil, err
	}
	return a, nil
}

// checkRedirect returns ErrInvalid for a redirect that leads nowhere. http.Client would return an error that does not tell it
// from a connection that fails.
func checkRedirect(a *http.Response) error {
	to, err := a.Location()
	if errors.Is(err, http.ErrNoLocation) {
		return nil // its status is the error
	}
	if err != nil || to.Host == "" && (to.Scheme == "http" || to.Scheme == "https") {
		return fmt.Errorf("%w: the server answered %d with a redirect that is no address (Location: %q); give the address of the "+
			"data themselves", source.ErrInvalid, a.StatusCode, Hide(publicPart(a.Header.Get("Location")), 100, SecretsOf(a.Request)...))
	}
	return nil
}

// publicPart returns the part of a broken address that has no user, password or query.
func publicPart(address string) string {
	address, _, _ = strings.Cut(address, "?")
	return address[strings.LastIndex(address, "@")+1:]
}

// check returns ErrInvalid for an answer that has not the bytes that a request asks for.
func check(r *http.Request, a *http.Response) error {
	for coding := range strings.SplitSeq(strings.Join(a.Header["Content-Encoding"], ","), ",") {
		switch coding = strings.ToLower(strings.TrimSpace(coding)); coding {
		case "", "identity", "aws-chunked": // the last one is of the upload; some servers keep it, and send plain bytes
		default:
			return fmt.Errorf("%w: the server answered with bytes in the encoding %q (Content-Encoding), and the request "+
				"permits none; switch compression off for these files, or take Content-Encoding out of the metadata of the object",
				source.ErrInvalid, coding)
		}
	}
	asked := r.Header.Get("Range")
	if a.StatusCode == http.StatusPartialContent {
		if err := checkPart(asked, a); err != nil {
			return err
		}
	} else {
		a.Header.Del("Content-Range") // it says something of parts only
	}
	if r.Method == http.MethodHead || r.Method == http.MethodGet && asked != "" { // other requests are about no object
		return checkKind(r, a)
	}
	return nil
}

// checkPart returns ErrInvalid if the range of an answer reaches beyond the one that was asked for, or if the body has
// more bytes than the range: a server that sends the whole object there would pass its first bytes off as those of the
// range. A range or a body that is too short is no such fault: the read goes on after it, or is tried again.
func checkPart(asked string, a *http.Response) error {
	said := a.Header.Get("Content-Range")
	var first, last, from, to int64
	if _, err := fmt.Sscanf(said, "bytes %d-%d/", &first, &last); err != nil || last < first {
		return fmt.Errorf("%w: the server answered with a part (206) and does not say which (Content-Range: %q)", source.ErrInvalid, said)
	}
	if _, err := fmt.Sscanf(asked, "bytes=%d-%d", &from, &to); err == nil && (first != from || last > to) {
		return fmt.Errorf("%w: the server answered the range %q to a request for %q", source.ErrInvalid, said, asked)
	}
	part := last - first + 1
	switch {
	case a.ContentLength > part:
		return tooLong(a.ContentLength, part, said)
	case a.ContentLength < 0:
		a.Body = &exact{a.Body, part, part, said}
	}
	return nil
}

func tooLong(bytes, part int64, said string) error {
	return fmt.Errorf("%w: the server answered with %d bytes or more, and says that they are the %d of the range %q", source.ErrInvalid,
		bytes, part, said)
}

// exact is a body of unknown length that must end with its range. It gives the last bytes only when it has ended.
type exact struct {
	io.ReadCloser
	left, part int64
	said       string
}

// Read is part of io.Reader.
func (e *exact) Read(dst []byte) (n int, err error) {
	n, err = e.ReadCloser.Read(dst)
	for e.left -= int64(n); e.left == 0 && err == nil; {
		var more [1]byte
		var k int
		k, err = e.ReadCloser.Read(more[:])
		e.left -= int64(k)
	}
	if e.left < 0 {
		return 0, tooLong(e.part-e.left, e.part, e.said)
	}
	return n, err
}
