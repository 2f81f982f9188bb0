package remote

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/stocached/stocached/source"
)

// Options are the keys under `remote` that all drivers have. Their settings embed it.
type Options struct {
	CA       string        `key:"ca"`       // file of certificates in PEM that the server's certificate may come from, besides those of the system
	Stall    time.Duration `key:"stall"`    // an answer without a byte for so long is given up; default 10s
	Requests int           `key:"requests"` // requests at a time, at most; default 64
	Hedge    *bool         `key:"hedge"`    // a read that takes long gets a second request; default true
}

// Read decodes settings into all, which embeds o. It returns what sends requests. Errors: ErrInvalid,
// errors of the file.
func (o *Options) Read(s source.Settings, all any) (t Transport, err error) {
	if err := s.Decode(all); err != nil {
		return t, fmt.Errorf("remote: %w", err)
	}
	if err := o.check(); err != nil {
		return t, err
	}
	t.Transport, err = o.transport()
	return t, err
}

// check fills in defaults. It returns ErrInvalid.
func (o *Options) check() error {
	o.Stall, o.Requests = cmp.Or(o.Stall, defaultStall), cmp.Or(o.Requests, defaultMost)
	switch {
	case o.Stall < 100*time.Millisecond:
		return fmt.Errorf("%w: remote.stall is %v, less than 100ms", source.ErrInvalid, o.Stall)
	case o.Requests < 1 || o.Requests > 1024:
		return fmt.Errorf("%w: remote.requests is %d, not in 1..1024", source.ErrInvalid, o.Requests)
	}
	return nil
}

// transport takes the proxy from the environment.
func (o *Options) transport() (*http.Transport, error) {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConns, t.MaxIdleConnsPerHost = 0, o.Requests
	t.DisableCompression = true // samples are the bytes of the object
	t.ForceAttemptHTTP2 = false // one connection for each request: a large answer holds up no other
	t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	if o.CA == "" {
		return t, nil
	}
	pem, err := os.ReadFile(o.CA)
	if err != nil {
		return nil, fmt.Errorf("remote.ca: %w", err)
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		roots = x509.NewCertPool()
	}
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%w: remote.ca: %s has no certificate in PEM", source.ErrInvalid, o.CA)
	}
	t.TLSClientConfig.RootCAs = roots
	return t, nil
}
