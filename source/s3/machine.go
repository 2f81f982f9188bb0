package s3

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
)

const (
	probeTime   = time.Second      // limit of a process's first question to a metadata service, with auto
	machineTime = 5 * time.Second  // limit of each other question
	renewAgain  = 30 * time.Second // after a renewal that failed, while the keys are still valid
)

// machine asks the metadata service of the machine for the keys of its role.
type machine struct {
	credentials.IAM
	probe *probe // with auto; nil: each question is asked
	keys  credentials.Value
}

// probe remembers for a process whether a metadata service has keys. A machine without the service, or
// without a role, reads public buckets without a question for each of them.
type probe struct {
	sync.Mutex
	asked bool
	none  error // why there are no keys
}

var probes sync.Map // *probe by the address of the service

// namesRole says whether the environment names a role of this pod or task. Then IAM asks for that one, and
// never asks the machine.
func namesRole() bool {
	return cmp.Or(os.Getenv("AWS_WEB_IDENTITY_TOKEN_FILE"), os.Getenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"),
		os.Getenv("AWS_CONTAINER_CREDENTIALS_FULL_URI")) != ""
}

// service returns the address of the metadata service, and whether the environment names it.
func service() (address string, named bool) {
	if address = os.Getenv("AWS_EC2_METADATA_SERVICE_ENDPOINT"); address != "" {
		return strings.TrimSuffix(address, "/"), true
	}
	return credentials.DefaultIAMRoleEndpoint, false
}

// isAmazon says whether a host is Amazon's. The role of a machine has keys for Amazon's storage. Another
// storage would refuse them, also where it gives data to anyone.
func isAmazon(host string) bool {
	return strings.HasSuffix(host, ".amazonaws.com") || strings.HasSuffix(host, ".amazonaws.com.cn")
}

func newMachine(auto bool) *machine {
	address, _ := service()
	// No proxy: the address is one of this machine.
	m := &machine{IAM: credentials.IAM{Endpoint: address, Client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}}
	if auto {
		known, _ := probes.LoadOrStore(address, &probe{})
		m.probe = known.(*probe)
	}
	return m
}

// RetrieveWithCredContext is part of credentials.Provider.
func (m *machine) RetrieveWithCredContext(*credentials.CredContext) (credentials.Value, error) {
	if strings.EqualFold(os.Getenv("AWS_EC2_METADATA_DISABLED"), "true") {
		return credentials.Value{}, errors.New("AWS_EC2_METADATA_DISABLED is true, so the machine is not asked for its role")
	}
	if m.probe == nil {
		return m.ask(machineTime)
	}
	p := m.probe
	p.Lock()
	defer p.Unlock()
	if p.none != nil {
		return credentials.Value{}, p.none
	}
	limit := machineTime
	if !p.asked {
		limit = probeTime
	}
	v, err := m.ask(limit)
	if err != nil && !p.asked {
		p.none = err
	}
	p.asked = true
	return v, err
}

// lasts says whether keys are still valid, of a provider that could not renew them. It is asked again after a pause.
func lasts(keys credentials.Value, expiry *credentials.Expiry) bool {
	now := time.Now()
	if !now.Before(keys.Expiration) {
		return false
	}
	expiry.SetExpiration(now.Add(renewAgain), 0)
	return true
}

// ask asks for keys. If a renewal fails, the keys from before stay while they are valid.
func (m *machine) ask(limit time.Duration) (credentials.Value, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	v, err := m.IAM.RetrieveWithCredContext(&credentials.CredContext{Context: ctx, Client: m.Client})
	err = cmp.Or(err, demandKeys(v))
	switch {
	case err == nil:
		m.keys = v
	case lasts(m.keys, &m.Expiry):
		return m.keys, nil
	default:
		err = fmt.Errorf("the metadata service %s of this machine gave none within %v: %w", m.Endpoint, limit, err)
	}
	return v, err
}
