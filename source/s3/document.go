package s3

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/remote"
)

// noDate stands for a Last-Modified that a server does not send, or in another form: minio-go refuses an answer without
// one.
const noDate = "Thu, 01 Jan 1970 00:00:00 GMT"

// documents sends requests, and checks answers that are documents: minio-go takes a document of any other kind for an
// empty one.
type documents struct{ remote.Transport }

// RoundTrip is part of http.RoundTripper.
func (t documents) RoundTrip(r *http.Request) (*http.Response, error) {
	a, err := t.Transport.RoundTrip(r)
	root := documentOf(r)
	if err == nil {
		a.Header.Del("Expires") // nobody needs it, and minio-go refuses what an uploader may have written there
		if _, err := http.ParseTime(a.Header.Get("Last-Modified")); err != nil {
			a.Header.Set("Last-Modified", noDate)
		}
	}
	if err != nil || root == "" || a.StatusCode != http.StatusOK {
		return a, err
	}
	if err := demand(a, root); err != nil {
		a.Body.Close()
		return nil, err
	}
	return a, nil
}

// within sends requests that end with ctx, and calls alive when bytes of an answer come.
type within struct {
	documents
	ctx   context.Context
	alive func()
}

// RoundTrip is part of http.RoundTripper.
func (t within) RoundTrip(r *http.Request) (*http.Response, error) {
	a, err := t.documents.RoundTrip(r.WithContext(t.ctx))
	if err == nil {
		t.alive()
		a.Body = lively{a.Body, t.alive}
	}
	return a, err
}

// lively is a body that calls alive after each read.
type lively struct {
	io.ReadCloser
	alive func()
}

// Read is part of io.Reader.
func (l lively) Read(dst []byte) (int, error) {
	defer l.alive()
	return l.ReadCloser.Read(dst)
}

// documentOf returns the root of the document that answers a request; "": the answer is none.
func documentOf(r *http.Request) string {
	if r.Method == http.MethodGet && r.URL.Query().Has("list-type") {
		return "ListBucketResult"
	}
	return ""
}

const (
	mostBefore   = 64 << 10 // bytes before the root of a document
	mostDocument = 16 << 20 // bytes of a document: a page of 1,000 long names has 4 MiB
)

// bounded reads at most so many bytes of a document, so that no server takes all memory.
type bounded struct {
	io.Reader
	left int
}

// Read is part of io.Reader.
func (b *bounded) Read(dst []byte) (int, error) {
	n, err := b.Reader.Read(dst)
	if b.left -= n; b.left < 0 {
		return 0, fmt.Errorf("%w: the server answered with a document of more than %d bytes; it must list objects in pages",
			source.ErrInvalid, mostDocument)
	}
	return n, err
}

// demand returns an error unless the body of an answer is a document with this root. A document about an error, which
// some servers send with the status 200, gets the status 500. Errors: ErrInvalid; ErrUnavailable if the answer ends too
// early.
func demand(a *http.Response, root string) error {
	var read bytes.Buffer
	d := xml.NewDecoder(io.TeeReader(io.LimitReader(a.Body, mostBefore), &read))
	other := func(what string) error {
		return fmt.Errorf("%w: the server answered 200 with %s where <%s> was asked for (Content-Type: %q); check that "+
			"remote.endpoint is storage that speaks S3", source.ErrInvalid, what, root, a.Header.Get("Content-Type"))
	}
	for {
		token, err := d.RawToken()
		if syntax := new(xml.SyntaxError); errors.As(err, &syntax) && syntax.Msg != "unexpected EOF" {
			return other("a text that is no XML")
		} else if err != nil {
			return fmt.Errorf("%w: the answer ended before <%s>, after %d bytes", source.ErrUnavailable, root, read.Len())
		}
		switch token := token.(type) {
		case xml.CharData:
			if len(bytes.TrimSpace(token)) > 0 {
				return other("a text that is no XML")
			}
		case xml.StartElement:
			switch token.Name.Local {
			case "Error":
				a.StatusCode, a.Status = http.StatusInternalServerError, "500 Internal Server Error"
			case root:
			default:
				return other("<" + token.Name.Local + ">")
			}
			a.Body = struct {
				io.Reader
				io.Closer
			}{&bounded{io.MultiReader(&read, a.Body), mostDocument}, a.Body}
			return nil
		}
	}
}
