package remote_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/source/s3/s3test"
)

// metadata is a metadata service of a machine: IMDSv2, as EC2 has it.
type metadata struct {
	*httptest.Server
	mu     sync.Mutex
	asked  []string      // method and path of each request
	valid  time.Duration // how long keys are valid
	broken atomic.Bool
}

func (m *metadata) requests() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.asked)
}

// newMetadata makes the service of a machine whose keys are ROLE1, ROLE2, ... in turn. Without a role, it has no list of roles.
func newMetadata(t *testing.T, role string, valid time.Duration) *metadata {
	t.Helper()
	m := &metadata{valid: valid}
	given := 0
	m.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.asked = append(m.asked, r.Method+" "+r.URL.Path)
		const list = "/latest/meta-data/iam/security-credentials/"
		switch {
		case m.broken.Load():
			w.WriteHeader(http.StatusInternalServerError)
		case r.Method == http.MethodPut && r.URL.Path == "/latest/api/token" && r.Header.Get("X-aws-ec2-metadata-token-ttl-seconds") != "":
			fmt.Fprint(w, "a-token")
		case r.Header.Get("X-aws-ec2-metadata-token") != "a-token":
			w.WriteHeader(http.StatusUnauthorized)
		case role == "":
			w.WriteHeader(http.StatusNotFound)
		case r.URL.Path == list:
			fmt.Fprint(w, role)
		case r.URL.Path == list+role:
			given++
			fmt.Fprintf(w, `{"Code": "Success", "AccessKeyId": "ROLE%d", "SecretAccessKey": "role-secret", "Token": "session-%d", "Expiration": %q}`,
				given, given, time.Now().Add(m.valid).UTC().Format(time.RFC3339Nano))
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(m.Close)
	withoutKeys(t)
	t.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", m.URL+"/")
	t.Setenv("AWS_EC2_METADATA_DISABLED", "")
	return m
}

// withoutKeys leaves no keys in the environment and in files.
func withoutKeys(t *testing.T) {
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_WEB_IDENTITY_TOKEN_FILE",
		"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", t.TempDir()+"/none")
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1") // never for the machine's own service, and Go takes none for the storage's loopback address
}

// signed notes whose keys the requests to a storage have.
func signed(s storage) func() []string {
	var mu sync.Mutex
	var names []string
	s.Spoil(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		_, name, _ := strings.Cut(r.Header.Get("Authorization"), "Credential=")
		name, _, _ = strings.Cut(name, "/")
		mu.Lock()
		name += r.Header.Get("X-Amz-Security-Token")
		if name != s3test.AccessKey && !slices.Contains(names, name) { // the test puts the object with this key
			names = append(names, name)
		}
		mu.Unlock()
		next.ServeHTTP(w, r)
	})
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return names
	}
}

// Ensure that without other keys the role of the machine gives them, and that keys which have ended are renewed, and
// others are not.
func TestRoleOfTheMachine(t *testing.T) {
	for _, setting := range []string{"", "iam"} {
		s := newStorage(t)
		m := newMetadata(t, "reader", -time.Second) // so each request renews them
		keys := signed(s)
		source, want := records(t, s, 1, map[string]any{"credentials": setting, "hedge": false})
		got := make([]byte, recordBytes)
		read := func() {
			t.Helper()
			if _, err := source.Read(t.Context(), 0, got); err != nil || !slices.Equal(got, want[0]) {
				t.Errorf("%q: %v", setting, err)
			}
		}
		read()
		before := len(keys())
		read()
		m.mu.Lock()
		m.valid = time.Hour
		m.mu.Unlock()
		read()
		last := keys()
		if before == 0 || len(last) <= before || last[0] != "ROLE1session-1" || slices.Contains(last, "") {
			t.Fatalf("%q: signed with %q", setting, last)
		}
		m.broken.Store(true)
		read()
		if now := keys(); len(now) != len(last) {
			t.Errorf("%q: signed with %q, also after the keys for an hour", setting, now)
		}
		if asked := m.requests(); asked[0] != "PUT /latest/api/token" {
			t.Errorf("%q: asked for %q", setting, asked)
		}
	}
}

// Ensure that keys from elsewhere, and AWS_EC2_METADATA_DISABLED, leave the machine's service alone.
func TestRoleIsAskedLast(t *testing.T) {
	s := newStorage(t)
	s.Put(t, "records", []byte("0123456789"))
	for name, c := range map[string]struct {
		variable, value, setting string
		want                     error
	}{
		"keys":     {"AWS_SECRET_ACCESS_KEY", "of-the-environment", "auto", nil},
		"disabled": {"AWS_EC2_METADATA_DISABLED", "TRUE", "auto", nil},
		"no keys":  {"X", "", "none", nil},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMetadata(t, "reader", time.Hour)
			t.Setenv("AWS_ACCESS_KEY_ID", map[bool]string{true: "ENV"}[name == "keys"])
			t.Setenv(c.variable, c.value)
			expect.Works(first(t, "s3://photos/records", map[string]any{"endpoint": s.URL, "credentials": c.setting}))(t)
			if asked := m.requests(); len(asked) > 0 {
				t.Errorf("asked for %q", asked)
			}
		})
	}
}

// Ensure that a service that has no role, or does not answer, is asked once by a process, for a second, that public
// buckets are read then, and that the message of a bucket that is not public says so.
func TestMachineWithoutRole(t *testing.T) {
	hung := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer hung.Close()
	for name, want := range map[string]string{"no role": "404 Not Found", "hangs": "within 1s"} {
		t.Run(name, func(t *testing.T) {
			s := newStorage(t)
			s.Put(t, "records", []byte("0123456789"))
			m := newMetadata(t, "", time.Hour)
			if name == "hangs" {
				m.Config.Handler, hung.Config.Handler = hung.Config.Handler, m.Config.Handler
			}
			began := time.Now()
			for range 3 {
				if got, err := first(t, "s3://photos/records", map[string]any{"endpoint": s.URL}); err != nil || string(got) != "0123456789" {
					t.Errorf("%q, %v", got, err)
				}
			}
			if took := time.Since(began); name == "hangs" && (took < 900*time.Millisecond || took > 10*time.Second) {
				t.Errorf("three sources opened in %v", took)
			}
			if asked := m.requests(); name == "no role" && len(asked) != 2 {
				t.Errorf("asked for %q", asked)
			}
			s.Spoil(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
				w.WriteHeader(http.StatusForbidden)
				fmt.Fprint(w, "<Error><Code>AccessDenied</Code><Message>no</Message></Error>")
			})
			_, err := first(t, "s3://photos/records", map[string]any{"endpoint": s.URL})
			if !errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), "had no signature") ||
				!strings.Contains(err.Error(), m.URL) || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
		})
	}
}

// Ensure that a service which gives no keys, because its answer has another form, never leaves requests without a
// signature in silence.
func TestServicesWithoutKeys(t *testing.T) {
	s := newStorage(t)
	s.Put(t, "records", []byte("0123456789"))
	var answer atomic.Value
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/security-credentials/"):
			fmt.Fprint(w, "role")
		case r.Method == http.MethodPut:
			fmt.Fprint(w, "a-token")
		default:
			fmt.Fprint(w, answer.Load())
		}
	}))
	defer service.Close()
	withoutKeys(t)
	t.Setenv("AWS_EC2_METADATA_DISABLED", "")
	for variable, c := range map[string]struct{ address, answer string }{
		"AWS_EC2_METADATA_SERVICE_ENDPOINT":  {service.URL, `{"Code": "Success", "AccessKeyId": "A"}`},
		"AWS_CONTAINER_CREDENTIALS_FULL_URI": {service.URL + "/keys", "{}"},
	} {
		t.Setenv(variable, c.address)
		answer.Store(c.answer)
		got, err := first(t, "s3://photos/records", map[string]any{"endpoint": s.URL, "credentials": "iam"})
		if err == nil || !strings.Contains(err.Error(), "no keys from the role of this machine or pod") {
			t.Errorf("%s, answer %q: %q, %v", variable, c.answer, got, err)
		}
	}
}

// Ensure that keys whose time has ended are a matter of permission, though S3 answers 400 then: programs hand over others.
func TestKeysThatHaveEnded(t *testing.T) {
	s := newStorage(t)
	s.Put(t, "records", []byte("0123456789"))
	for _, code := range []string{"ExpiredToken", "TokenRefreshRequired", "InvalidToken"} {
		s.Spoil(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprintf(w, "<Error><Code>%s</Code><Message>no</Message></Error>", code)
		})
		_, err := first(t, "s3://photos/records", map[string]any{"endpoint": s.URL})
		if !errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), code) || !strings.Contains(err.Error(), "the keys came from") {
			t.Errorf("%s: %v", code, err)
		}
	}
}
