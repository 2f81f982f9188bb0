package s3

import (
	"errors"
	"sync/atomic"

	"github.com/minio/minio-go/v7/pkg/credentials"
)

// handed are the keys that a program gave this process; nil: the environment has the keys.
var handed atomic.Pointer[credentials.Value]

// HandKeys takes keys in place of those of the environment, for all sources of this process. Open sources use
// them from their next request on. Any number of goroutines may call it.
func HandKeys(id, secret, token string) {
	handed.Store(&credentials.Value{AccessKeyID: id, SecretAccessKey: secret, SessionToken: token,
		SignerType: credentials.SignatureV4})
}

// environment gives the keys that a program handed over, else those of the environment.
type environment struct {
	credentials.EnvAWS
	taken *credentials.Value // what it gave last; nil: keys of the environment, or none
}

// RetrieveWithCredContext is part of credentials.Provider.
func (e *environment) RetrieveWithCredContext(about *credentials.CredContext) (credentials.Value, error) {
	if e.taken = handed.Load(); e.taken != nil {
		return *e.taken, nil
	}
	v, err := e.EnvAWS.RetrieveWithCredContext(about)
	if (v.AccessKeyID == "") != (v.SecretAccessKey == "") {
		err = wrongKeys{errors.New("one of the two is missing; set both or neither")}
	}
	return v, err
}

// IsExpired is part of credentials.Provider.
func (e *environment) IsExpired() bool {
	if now := handed.Load(); now != nil || e.taken != nil {
		return now != e.taken
	}
	return e.EnvAWS.IsExpired()
}
