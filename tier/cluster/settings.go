package cluster

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/tier"
)

// settings are the keys of the tier; docs/spec/tiers.md describes them.
type settings struct {
	Addresses    []string       `key:"addresses"`
	User         string         `key:"user"`
	Password     tier.Secret    `key:"password"`
	PasswordFile string         `key:"password_file"`
	TLS          map[string]any `key:"tls"`
	Timeout      time.Duration  `key:"timeout"`
	Expire       time.Duration  `key:"expire"`
	Lease        time.Duration  `key:"lease"`

	tls    *tls.Config // nil: none
	buffer int         // bytes of a connection, for what it reads
	most   int         // bytes of a value that a node may answer with
}

// tlsSettings are the keys under tls.
type tlsSettings struct {
	CA         string `key:"ca"`
	Cert       string `key:"cert"`
	Key        string `key:"key"`
	ServerName string `key:"server_name"`
}

var defaults = source.Settings{"timeout": "500ms", "expire": "168h", "lease": "10s"}

// read reads and checks settings. Errors: source.ErrInvalid, errors of files.
func read(from source.Settings) (*settings, error) {
	s := new(settings)
	if err := from.Or(defaults).Decode(s); err != nil {
		return nil, err
	}
	var wrong []string
	complain := func(format string, a ...any) { wrong = append(wrong, fmt.Sprintf(format, a...)) }
	if len(s.Addresses) == 0 {
		complain("addresses: give host:port of the server, or of some nodes of the cluster")
	}
	for k, a := range s.Addresses {
		if strings.Contains(a, "@") || strings.Contains(a, "://") { // may have a password, so it is not shown
			complain("addresses: entry %d is not host:port; leave out redis://, and give user and password as keys of their own", k+1)
		} else if host, port, err := net.SplitHostPort(a); err != nil || host == "" || port == "" {
			complain("addresses: %q is not host:port, such as cache-0:6379", a)
		}
	}
	if s.Password != "" && s.PasswordFile != "" {
		complain("password_file: leave it out, or password")
	}
	if s.User != "" && s.Password == "" && s.PasswordFile == "" {
		complain("user: %s needs a password or a password_file", s.User)
	}
	for key, d := range map[string]struct{ is, least time.Duration }{"timeout": {s.Timeout, 10 * time.Millisecond},
		"expire": {s.Expire, time.Minute}, "lease": {s.Lease, 500 * time.Millisecond}} {
		if d.is < d.least {
			complain("%s: %v is less than %v", key, d.is, d.least)
		}
	}
	if len(wrong) > 0 {
		return nil, fmt.Errorf("%w: %s", source.ErrInvalid, strings.Join(wrong, "; "))
	}
	if _, err := s.password(); err != nil {
		return nil, err
	}
	return s, s.readTLS()
}

// check is part of tier.Kind.
func check(from source.Settings, about tier.About) error {
	s, err := read(from)
	if err == nil && about.Within != 0 && s.Timeout > about.Within/4 {
		err = fmt.Errorf("%w: timeout: %v is more than a quarter of the cache's read_timeout, which is %v",
			source.ErrInvalid, s.Timeout, about.Within)
	}
	return err
}

// password returns the present password.
func (s *settings) password() (string, error) {
	if s.PasswordFile == "" {
		return string(s.Password), nil
	}
	text, err := os.ReadFile(s.PasswordFile)
	if err != nil {
		return "", fmt.Errorf("password_file: %w", err)
	}
	return strings.TrimRight(string(text), "\r\n"), nil
}

// hide removes the password from a text of the engine or of a library.
func (s *settings) hide(text string) string {
	if p, err := s.password(); err == nil && p != "" {
		text = strings.ReplaceAll(text, p, tier.Secret("").String())
	}
	return text
}

func (s *settings) readTLS() error {
	if s.TLS == nil {
		return nil
	}
	var t tlsSettings
	if err := source.Settings(s.TLS).Decode(&t); err != nil {
		return fmt.Errorf("tls: %w", err)
	}
	s.tls = &tls.Config{ServerName: t.ServerName, MinVersion: tls.VersionTLS12}
	if t.CA != "" {
		text, err := os.ReadFile(t.CA)
		if err != nil {
			return fmt.Errorf("tls.ca: %w", err)
		}
		s.tls.RootCAs = x509.NewCertPool()
		if !s.tls.RootCAs.AppendCertsFromPEM(text) {
			return fmt.Errorf("%w: tls.ca: %s has no certificate in PEM", source.ErrInvalid, t.CA)
		}
	}
	if (t.Cert == "") != (t.Key == "") {
		return fmt.Errorf("%w: tls.cert and tls.key go together", source.ErrInvalid)
	}
	if t.Cert != "" {
		pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
		if err != nil {
			var missing *os.PathError
			if errors.As(err, &missing) {
				return fmt.Errorf("tls.cert, tls.key: %w", err)
			}
			return fmt.Errorf("%w: tls.cert, tls.key: %v", source.ErrInvalid, err)
		}
		s.tls.Certificates = []tls.Certificate{pair}
	}
	return nil
}
