package remote

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"strconv"
	"strings"
	"unicode"

	"github.com/stocached/stocached/source"
)

// NetworkError returns the error of a request that got no answer.
func NetworkError(name string, err error) error {
	var cut *url.Error // its text has the whole address, with what may be secret in it
	if errors.As(err, &cut) {
		err = cut.Err
	}
	var certificate *tls.CertificateVerificationError
	if errors.As(err, &certificate) {
		var invalid x509.CertificateInvalidError
		if errors.As(certificate.Err, &invalid) && invalid.Reason == x509.Expired {
			return fmt.Errorf("%w: %s: the certificate of the server is not valid now: %v; renew it there, or set the clock of "+
				"this machine", source.ErrInvalid, name, certificate.Err)
		}
		return fmt.Errorf("%w: %s: the certificate of the server does not verify: %v; give the file of its CA as remote.ca",
			source.ErrInvalid, name, certificate.Err)
	}
	if errors.Is(err, source.ErrInvalid) {
		return fmt.Errorf("%s: %w", name, err)
	}
	var header textproto.ProtocolError // its text has the whole header, with what may be secret in it
	if errors.As(err, &header) {
		_, quoted, _ := strings.Cut(string(header), `: "`)
		line, _ := strconv.Unquote(`"` + strings.TrimPrefix(quoted, `missing colon: "`))
		if strings.ContainsFunc(line, unicode.IsControl) {
			return fmt.Errorf("%w: %s: the answer of the server has a header with control characters; curl -v shows it",
				source.ErrInvalid, name)
		}
		return fmt.Errorf("%w: %s: the answer of the server ends within a header, or has one that is none; curl -v shows it",
			source.ErrUnavailable, name)
	}
	var record tls.RecordHeaderError
	if errors.Is(err, http.ErrSchemeMismatch) || errors.As(err, &record) {
		return fmt.Errorf("%w: %s: the server answers without TLS; write http:// for it, and not https://", source.ErrInvalid, name)
	}
	var address *net.AddrError
	if errors.As(err, &address) {
		return fmt.Errorf("%w: %s: %v", source.ErrInvalid, name, err)
	}
	var dial *net.OpError
	if errors.As(err, &dial) && dial.Op == "proxyconnect" {
		return fmt.Errorf("%w: %s: no connection to the proxy that HTTP_PROXY or HTTPS_PROXY names: %w",
			source.ErrUnavailable, name, dial.Err)
	}
	var late net.Error
	if errors.As(err, &late) && late.Timeout() { // it is a context.DeadlineExceeded too, which would be the reader's own
		return fmt.Errorf("%w: %s: %v", source.ErrUnavailable, name, err)
	}
	return fmt.Errorf("%w: %s: %w", source.ErrUnavailable, name, err)
}
