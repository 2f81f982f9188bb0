package s3

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/verify/expect"
)

// Ensure that the machine is asked only for keys of Amazon's storage, unless the environment says where to ask.
func TestStorageOfRoles(t *testing.T) {
	for host, want := range map[string]bool{"s3.amazonaws.com": true, "photos.s3.eu-west-1.amazonaws.com": true, "s3.cn-north-1.amazonaws.com.cn": true,
		"storage.googleapis.com": false, "127.0.0.1": false, "amazonaws.com.example": false, "my-amazonaws.com": false} {
		expect.Equal(t, isAmazon(host), want, "%s is Amazon's", host)
	}
	t.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "")
	if address, named := service(); address != "http://169.254.169.254" || named {
		t.Errorf("the service is %s, %v", address, named)
	}
}

// Ensure that keys stay in use while they are valid, if the service does not renew them before they end.
func TestRenewalThatFails(t *testing.T) {
	var broken atomic.Bool
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case broken.Load():
			w.WriteHeader(http.StatusInternalServerError)
		case strings.HasSuffix(r.URL.Path, "/role"):
			fmt.Fprintf(w, `{"Code": "Success", "AccessKeyId": "A", "SecretAccessKey": "s", "Expiration": %q}`, time.Now().Add(time.Hour).Format(time.RFC3339))
		default:
			fmt.Fprint(w, "role")
		}
	}))
	defer service.Close()
	t.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", service.URL)
	t.Setenv("AWS_EC2_METADATA_DISABLED", "")
	m := newMachine(true)
	if v, err := m.RetrieveWithCredContext(nil); err != nil || v.AccessKeyID != "A" || m.IsExpired() {
		t.Fatalf("%+v, %v", v, err)
	}
	m.CurrentTime = func() time.Time { return time.Now().Add(50 * time.Minute) }
	if broken.Store(true); !m.IsExpired() {
		t.Fatal("keys for an hour are not renewed after 50 minutes")
	}
	if v, err := m.RetrieveWithCredContext(nil); err != nil || v.AccessKeyID != "A" {
		t.Errorf("after a renewal that failed: %+v, %v", v, err)
	}
	m.keys.Expiration = time.Now()
	if v, err := m.RetrieveWithCredContext(nil); err == nil || v.AccessKeyID != "" {
		t.Errorf("keys that have ended: %+v, %v", v, err)
	}
	broken.Store(false)
	if v, err := m.RetrieveWithCredContext(nil); err != nil || v.AccessKeyID != "A" {
		t.Errorf("after the service works again: %+v, %v", v, err)
	}
}
