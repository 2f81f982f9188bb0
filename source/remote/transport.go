package remote

import (
	"fmt"
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
	if err != nil || a.StatusCode >= http.StatusMultipleChoices {
		return a, err
	}
	for coding := range strings.SplitSeq(strings.Join(a.Header["Content-Encoding"], ","), ",") {
		switch coding = strings.ToLower(strings.TrimSpace(coding)); coding {
		case "", "identity", "aws-chunked": // the last one is of the upload; some servers keep it, and send plain bytes
		default:
			a.Body.Close()
			return nil, fmt.Errorf("%w: the server answered with bytes in the encoding %q (Content-Encoding), and the request "+
				"permits none; switch compression off for these files, or take Content-Encoding out of the metadata of the object",
				source.ErrInvalid, coding)
		}
	}
	if a.StatusCode == http.StatusPartialContent {
		if err := checkPart(a); err != nil {
			a.Body.Close()
			return nil, err
		}
	}
	return a, nil
}

// checkPart returns ErrInvalid if the body of an answer has more bytes than the range that it names: a server that sends
// the whole object there would pass its first bytes off as those of the range. A body that is too short is no fault of
// this kind: its read fails, and is tried again.
func checkPart(a *http.Response) error {
	said := a.Header.Get("Content-Range")
	var first, last int64
	if _, err := fmt.Sscanf(said, "bytes %d-%d/", &first, &last); err != nil || last < first {
		return fmt.Errorf("%w: the server answered with a part (206) and does not say which (Content-Range: %q)", source.ErrInvalid, said)
	}
	if part := last - first + 1; a.ContentLength > part {
		return fmt.Errorf("%w: the server answered with %d bytes, and says that they are the %d of the range %q", source.ErrInvalid,
			a.ContentLength, part, said)
	}
	return nil
}
