// Package http reads objects from web servers: http:// and https://. A server must answer requests for
// ranges. It should give an ETag or a Last-Modified, else only a change of size is noticed. Web servers
// list nothing, so a kind that lists files needs their names.
package http

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/remote"
)

func init() {
	source.RegisterScheme("http", open)
	source.RegisterScheme("https", open)
}

// settings are the keys under `remote`.
type settings struct {
	remote.Options `key:",squash"`
}

func open(s source.Settings, private source.Private) (source.Objects, error) {
	var o settings
	transport, err := o.Read(s, &o)
	if err != nil {
		return nil, err
	}
	return remote.New(&driver{http.Client{Transport: transport, CheckRedirect: redirect}, private}, o.Options), nil
}

type driver struct {
	client  http.Client
	private source.Private
}

func (d *driver) Close() { d.client.CloseIdleConnections() }

// redirect follows a redirect as net/http does, but never from https to http.
func redirect(to *http.Request, from []*http.Request) error {
	to.Header.Del("Referer") // it would tell another server the query, which may be a signature
	if to.URL.Host != from[0].URL.Host {
		to.Header.Del("Authorization") // net/http sends it to other ports of the host
	}
	switch last := from[len(from)-1].URL; {
	case len(from) >= 10:
		return fmt.Errorf("%w: the server redirects more than 10 times, lately to %s", source.ErrInvalid, to.URL.Host)
	case last.Scheme == "https" && to.URL.Scheme != "https":
		return fmt.Errorf("%w: the server redirects from https to %s://%s; give an address that stays with https",
			source.ErrInvalid, to.URL.Scheme, to.URL.Host)
	case to.URL.Scheme != "http" && to.URL.Scheme != "https":
		return fmt.Errorf("%w: the server redirects to %s://, which is no web server", source.ErrInvalid, to.URL.Scheme)
	}
	return nil
}

// send sends a request.
func (d *driver) send(ctx context.Context, method, name string, header map[string]string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, name, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %s is no address", source.ErrInvalid, name)
	}
	if r.URL.RawQuery = d.private.Query; d.private.User != "" {
		r.SetBasicAuth(d.private.User, d.private.Password)
	}
	for key, value := range header {
		r.Header.Set(key, value)
	}
	a, err := d.client.Do(r)
	if err != nil {
		return nil, remote.NetworkError(name, err)
	}
	if a.StatusCode != http.StatusOK && a.StatusCode != http.StatusPartialContent {
		text, _ := io.ReadAll(io.LimitReader(a.Body, 64<<10)) // a part of the text is better than none
		a.Body.Close()
		said := http.StatusText(a.StatusCode) // the answer to a HEAD has no text
		if len(text) > 0 {
			said += fmt.Sprintf(" %q", remote.Hide(string(text), 200, remote.SecretsOf(a.Request)...))
		}
		return nil, remote.StatusError(name, a.StatusCode, said)
	}
	return a, nil
}

func (d *driver) Head(ctx context.Context, name string) (remote.Answer, error) {
	a, err := d.send(ctx, http.MethodHead, name, nil)
	if err != nil {
		return remote.Answer{}, err
	}
	return remote.Answer{Bytes: a.ContentLength, Tag: remote.Tag(a.Header)}, a.Body.Close()
}

func (d *driver) Get(ctx context.Context, name string, offset int64, n int, tag string) (remote.Answer, error) {
	header := map[string]string{"Range": fmt.Sprintf("bytes=%d-%d", offset, offset+int64(n)-1)}
	if remote.IsStrong(tag) {
		header["If-Match"] = tag
	}
	a, err := d.send(ctx, http.MethodGet, name, header)
	if err != nil {
		return remote.Answer{}, err
	}
	bytes, err := remote.AnsweredBytes(a.Header.Get("Content-Range"), offset, n, a.ContentLength)
	if err != nil {
		a.Body.Close()
		return remote.Answer{}, fmt.Errorf("%w: %s: %w", source.ErrInvalid, name, err)
	}
	return remote.Answer{Bytes: bytes, Tag: remote.Tag(a.Header), Body: a.Body}, nil
}

func (d *driver) List(_ context.Context, prefix, _ string, _ func()) (remote.Page, error) {
	return remote.Page{}, fmt.Errorf("%w: a web server does not list its files; name those below %s: "+
		"shards by braces, as in train-{000..012}.tar, files by a manifest", source.ErrInvalid, prefix)
}
