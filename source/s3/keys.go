package s3

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/remote"

	"github.com/minio/minio-go/v7/pkg/credentials"
)

// keys are the access keys of requests, and where they come from.
type keys struct {
	*credentials.Credentials
	setting string                 // remote.credentials
	blame   string                 // the beginning of errors if the program set it
	file    string                 // where keys are looked for, with the profile
	from    atomic.Pointer[string] // where the latest keys came from; nil: there were none
	latest  atomic.Pointer[credentials.Value]
	no      atomic.Pointer[error] // why the role gave no keys; nil: it was not asked, or gave some
}

// place is a provider that tells keys when they come from it.
type place struct {
	credentials.Provider
	name string
	keys *keys
	role bool
}

// wrongKeys is an error that the user has to mend: no other place is asked for keys.
type wrongKeys struct{ error }

// RetrieveWithCredContext is part of credentials.Provider.
func (p place) RetrieveWithCredContext(about *credentials.CredContext) (credentials.Value, error) {
	v, err := p.Provider.RetrieveWithCredContext(about)
	if p.role {
		err = cmp.Or(err, demandKeys(v))
	}
	var wrong wrongKeys
	switch {
	case errors.Is(err, source.ErrUnavailable):
		err = fmt.Errorf("no keys from %s: %w", p.name, err)
	case errors.As(err, &wrong) || err != nil && p.keys.setting == "file": // another try meets the same
		err = fmt.Errorf("%w: %sno keys in %s: %w; or set remote: {credentials: iam} for a role, none for no keys",
			source.ErrInvalid, p.keys.blame, p.name, err)
	case err != nil:
		if p.role {
			p.keys.no.Store(&err)
			p.keys.from.Store(nil) // the chain goes on without keys
		}
		err = fmt.Errorf("no keys from %s: %w", p.name, err)
	case v.AccessKeyID != "" && v.SecretAccessKey != "":
		p.keys.from.Store(&p.name)
		p.keys.latest.Store(&v)
	}
	return v, err
}

// demandKeys returns an error if the answer of a service has no keys: then it was of another form.
func demandKeys(v credentials.Value) error {
	if v.AccessKeyID == "" || v.SecretAccessKey == "" {
		return errors.New("the service answered without keys: AccessKeyId or SecretAccessKey is missing")
	}
	return nil
}

// keys returns where the access keys of a storage come from.
func (o *settings) keys(host string) (*keys, error) {
	k := &keys{setting: cmp.Or(o.Credentials, "auto")}
	if o.Credentials != "" {
		k.blame = fmt.Sprintf("remote.credentials is %s: ", o.Credentials)
	}
	chosen := cmp.Or(o.Profile, os.Getenv("AWS_PROFILE"))
	k.file = fmt.Sprintf("profile %s of %s", cmp.Or(chosen, "default"),
		cmp.Or(os.Getenv("AWS_SHARED_CREDENTIALS_FILE"), "~/.aws/credentials"))
	own := place{&environment{}, "the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)", k, false}
	file := place{&profile{FileAWSCredentials: credentials.FileAWSCredentials{Profile: cmp.Or(chosen, "default")}, named: chosen != ""},
		k.file, k, false}
	role := place{&credentials.IAM{}, "the role of this machine or pod", k, true}
	if !namesRole() {
		role.Provider = newMachine(k.setting == "auto")
	}
	switch k.setting {
	case "auto":
		all := []credentials.Provider{own, file}
		if _, named := service(); named || namesRole() || isAmazon(host) {
			all = append(all, role)
		}
		k.Credentials = credentials.New(&chain{all: all})
	case "environment":
		k.Credentials = credentials.New(own)
	case "file":
		k.Credentials = credentials.New(file)
	case "iam":
		k.Credentials = credentials.New(role)
	case "none":
		k.Credentials = credentials.NewStaticV4("", "", "")
	default:
		return nil, fmt.Errorf("%w: remote.credentials is %q; known are: auto, environment, file, iam, none",
			source.ErrInvalid, o.Credentials)
	}
	return k, nil
}

// hide returns what a server said, without keys.
func (k *keys) hide(said string) string {
	v := k.latest.Load()
	if v == nil {
		return said
	}
	return remote.Hide(said, len(said), v.AccessKeyID, v.SecretAccessKey, v.SessionToken)
}

// explain says which keys a request had that a server refused, and what chooses others.
func (k *keys) explain() string {
	from, no := k.from.Load(), k.no.Load()
	switch {
	case from != nil:
		return fmt.Sprintf("the keys came from %s; remote.credentials and remote.profile choose others. "+
			"A public bucket needs none: remote: {credentials: none}", *from)
	case k.setting == "none":
		return "the request had no signature, because remote.credentials is none"
	case k.setting == "environment":
		return "the request had no signature: remote.credentials is environment, and AWS_ACCESS_KEY_ID or AWS_SECRET_ACCESS_KEY is not set"
	}
	text := fmt.Sprintf("the request had no signature: there are no keys in the environment (AWS_ACCESS_KEY_ID) or in %s "+
		"(remote.profile)", k.file)
	if no != nil {
		return fmt.Sprintf("%s, and the role of this machine or pod has none: %v", text, *no)
	}
	return text + "; if this machine or pod has a role, set remote: {credentials: iam}"
}
