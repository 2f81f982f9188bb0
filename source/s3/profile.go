package s3

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/stocached/stocached/source"

	"github.com/minio/minio-go/v7/pkg/credentials"
	"gopkg.in/ini.v1"
)

// profile gives the keys of a profile. What is wrong with a profile is an error, also with auto: requests without a
// signature would be refused, or get what anyone gets.
type profile struct {
	credentials.FileAWSCredentials
	named bool              // by the configuration or AWS_PROFILE, so there must be one
	keys  credentials.Value // the keys that it gave last
}

// unsupported are keys of profiles that name a role.
var unsupported = []string{"role_arn", "source_profile", "credential_source", "web_identity_token_file"}

// RetrieveWithCredContext is part of credentials.Provider.
func (p *profile) RetrieveWithCredContext(about *credentials.CredContext) (credentials.Value, error) {
	v, err := p.FileAWSCredentials.RetrieveWithCredContext(about)
	switch {
	case err == nil && v.AccessKeyID != "" && v.SecretAccessKey != "":
		p.keys = v
		return v, nil
	case lasts(p.keys, &p.Expiry):
		return p.keys, nil
	case err != nil && p.keys.AccessKeyID != "": // it had keys, so this may pass
		return v, fmt.Errorf("%w: %w", source.ErrUnavailable, err)
	}
	found, unread := p.section()
	var path *fs.PathError
	switch {
	case !p.named && (found == nil && unread == nil || errors.Is(unread, fs.ErrPermission)): // such as /root of another user
		return v, cmp.Or(err, errors.New("there is no such profile"))
	case unread != nil && !errors.As(unread, &path): // the parser's error has the line, which may be a secret
		err = errors.New("a line is no setting: it has no =, or a quote or bracket that does not end")
	case found != nil && len(strings.Fields(found.Key(process).String())) == 1 && err != nil:
		err = fmt.Errorf(`%s has no argument; write "env " before the path`, process)
	case found != nil && found.Key(process).String() != "":
		err = fmt.Errorf("%s: %w", process, cmp.Or(err, errors.New("its answer has not both AccessKeyId and SecretAccessKey")))
	case found != nil && found.Key("sso_role_name").String() != "":
		err = cmp.Or(err, errors.New("the answer for sso_role_name has no keys"))
	case err == nil:
		role := slices.IndexFunc(unsupported, func(key string) bool { return found != nil && found.HasKey(key) })
		if role < 0 {
			return v, errors.New("it has no aws_access_key_id and aws_secret_access_key") // others, such as region
		}
		err = fmt.Errorf("it has %s, which is not supported: give it keys, %s or a role of SSO", unsupported[role], process)
	}
	return v, wrongKeys{err}
}

const process = "credential_process" // key of a profile

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

// chain gives the keys of the first provider that has some. An error that the user has to mend, or that passes, is the chain's.
type chain struct {
	all  []credentials.Provider
	last credentials.Provider // the one that gave keys; nil: none did
}

// Retrieve is part of credentials.Provider.
func (c *chain) Retrieve() (credentials.Value, error) { return c.RetrieveWithCredContext(nil) }

// RetrieveWithCredContext is part of credentials.Provider.
func (c *chain) RetrieveWithCredContext(about *credentials.CredContext) (credentials.Value, error) {
	c.last = nil
	for _, p := range c.all {
		v, err := p.RetrieveWithCredContext(about)
		if errors.Is(err, source.ErrInvalid) || errors.Is(err, source.ErrUnavailable) {
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
