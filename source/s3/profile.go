package s3

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/stocached/stocached/source"

	"github.com/minio/minio-go/v7/pkg/credentials"
	"gopkg.in/ini.v1"
)

// profile gives the keys of a profile. What is wrong with a profile is an error, also with auto: requests without a
// signature would be refused, or get what anyone gets.
type profile struct {
	credentials.FileAWSCredentials
	named bool // by the configuration or AWS_PROFILE, so there must be one
}

// unsupported are keys of profiles that name a role.
var unsupported = []string{"role_arn", "source_profile", "credential_source", "web_identity_token_file"}

// RetrieveWithCredContext is part of credentials.Provider.
func (p *profile) RetrieveWithCredContext(about *credentials.CredContext) (credentials.Value, error) {
	v, err := p.FileAWSCredentials.RetrieveWithCredContext(about)
	if err == nil && v.AccessKeyID != "" {
		return v, nil
	}
	found, unread := p.section()
	switch {
	case !p.named && (found == nil && unread == nil || errors.Is(unread, fs.ErrPermission)): // such as /root of another user
		return v, cmp.Or(err, errors.New("there is no such profile"))
	case err == nil:
		err = errors.New("it has no aws_access_key_id and aws_secret_access_key")
		role := slices.IndexFunc(unsupported, func(key string) bool { return found != nil && found.HasKey(key) })
		if role < 0 && !p.named {
			return v, err // it has other settings, such as region
		}
		if role >= 0 {
			err = fmt.Errorf("it has %s, which is not supported: give it keys, credential_process or a role of SSO", unsupported[role])
		}
	}
	return v, wrongKeys{err}
}

// section returns the profile as the files have it; nil: they do not have it.
func (p *profile) section() (*ini.Section, error) {
	home, _ := os.UserHomeDir()
	files, err := ini.LooseLoad(cmp.Or(os.Getenv("AWS_CONFIG_FILE"), filepath.Join(home, ".aws", "config")),
		cmp.Or(os.Getenv("AWS_SHARED_CREDENTIALS_FILE"), filepath.Join(home, ".aws", "credentials")))
	if err != nil {
		return nil, err
	}
	for _, prefix := range []string{"", "profile "} {
		if found, err := files.GetSection(prefix + p.Profile); err == nil {
			return found, nil
		}
	}
	return nil, nil
}

// chain gives the keys of the first provider that has some. An error that another try meets too is the chain's.
type chain struct {
	all  []credentials.Provider
	last credentials.Provider // that gave keys; nil: none did
}

// Retrieve is part of credentials.Provider.
func (c *chain) Retrieve() (credentials.Value, error) { return c.RetrieveWithCredContext(nil) }

// RetrieveWithCredContext is part of credentials.Provider.
func (c *chain) RetrieveWithCredContext(about *credentials.CredContext) (credentials.Value, error) {
	c.last = nil
	for _, p := range c.all {
		v, err := p.RetrieveWithCredContext(about)
		if errors.Is(err, source.ErrInvalid) {
			return v, err
		}
		if err == nil && v.AccessKeyID != "" {
			c.last = p
			return v, nil
		}
	}
	return credentials.Value{SignerType: credentials.SignatureAnonymous}, nil
}

// IsExpired is part of credentials.Provider.
func (c *chain) IsExpired() bool { return c.last == nil || c.last.IsExpired() }
