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
	return a, nil
}
