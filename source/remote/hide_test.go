package remote_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/kinds"
	"github.com/stocached/stocached/source/remote"
)

// Ensure that secrets are hidden in each form in which a server may repeat them, that text without them stays, and
// that a secret which the text breaks off in the middle of is hidden too.
func TestHide(t *testing.T) {
	for _, c := range []struct{ said, want string }{
		{"The URL /x?sig=a%2Fb%2bcd%3D was refused", "The URL /x?sig=*** was refused"},
		{"sig is a/b+cd=, or a%2Fb%2Bcd=", "sig is ***, or ***"},
		{"<p>/x?v=1&amp;sig=a&#x2F;b&#43;cd=</p>", "<p>/x?v=1&sig=***</p>"},
		{`{"url": "\/x?v=1\u0026sig=a\/b+cd="}`, `{"url": "/x?v=1&sig=***"}`},
		{"some message for me: a/b+cda/b+cd=a/b+cd=", "some message for ***: a/b+cd***"},
		{strings.Repeat("x", 76) + "a/b+cd=", strings.Repeat("x", 76) + "***"},
		{"no secret", "no secret"},
		{"", ""},
	} {
		expect.Equal(t, remote.Hide(c.said, 80, "a%2Fb%2Bcd%3D", "me", ""), c.want, "%s", c.said)
	}
}

// Ensure that the error of a web server which repeats a request in its answer has the rest of that answer, and neither
// user, password nor query, also those of the address that it redirects to.
func TestAnswersThatRepeatTheRequest(t *testing.T) {
	const password, first, second = "pass/word+1", "signature-of-the-first", "signature-of-the-second"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/first" {
			http.Redirect(w, r, "/second?v=1&sig="+second, http.StatusFound)
			return
		}
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprintf(w, "refused %s from %s by %s, %q", r.URL, r.Header.Get("Referer"), r.Header.Get("Authorization"), r.URL.Query())
	}))
	defer server.Close()
	for _, path := range []string{"/first?key=" + first, "/second?sig=" + second} {
		address := strings.Replace(server.URL, "://", "://someone:"+url.QueryEscape(password)+"@", 1) + path
		_, err := kinds.Open(t.Context(), source.Settings{"kind": "raw", "path": address, "sample_bytes": 10})
		if err == nil || !strings.Contains(err.Error(), "the server answered 403") {
			t.Fatal(err)
		}
		for _, secret := range []string{"someone", password, url.QueryEscape(password), "c29tZW9uZTpwYXNz", first, second} {
			if strings.Contains(err.Error(), secret) {
				t.Errorf("%q is in: %v", secret, err)
			}
		}
	}
}
