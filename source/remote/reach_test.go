package remote_test

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/kinds"
	"github.com/stocached/stocached/source/remote"
)

// first opens a source of records of 10 bytes, and returns the first one.
func first(t *testing.T, path string, remote map[string]any) ([]byte, error) {
	t.Helper()
	settings := source.Settings{"kind": "raw", "path": path, "sample_bytes": 10}
	if remote != nil {
		settings["remote"] = remote
	}
	s, err := kinds.Open(t.Context(), settings)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	got := make([]byte, 10)
	_, err = s.Read(t.Context(), 0, got)
	return got, err
}

// Ensure that a server with a certificate of its own is read with its CA, and that the error without it names
// the setting.
func TestOwnCA(t *testing.T) {
	s := newStorage(t)
	s.Put(t, "records", []byte("0123456789"))
	secure := httptest.NewTLSServer(s.Server)
	defer secure.Close()
	ca := t.TempDir() + "/ca.pem"
	write(t, ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}))
	for path, remote := range map[string]map[string]any{
		"s3://photos/records":          {"endpoint": secure.URL},
		secure.URL + "/photos/records": {},
	} {
		if _, err := first(t, path, remote); !errors.Is(err, source.ErrInvalid) ||
			!strings.Contains(err.Error(), "remote.ca") || !strings.Contains(err.Error(), "does not verify") {
			t.Errorf("%s without the CA: %v", path, err)
		}
		remote["ca"] = ca
		if got, err := first(t, path, remote); err != nil || string(got) != "0123456789" {
			t.Errorf("%s with the CA: %q, %v", path, got, err)
		}
	}
}

// Ensure that a certificate that has expired is not said to need another CA.
func TestExpiredCertificate(t *testing.T) {
	expired := &tls.CertificateVerificationError{Err: x509.CertificateInvalidError{Reason: x509.Expired}}
	err := remote.NetworkError("https://host/x", &url.Error{Err: expired})
	if !errors.Is(err, source.ErrInvalid) || !strings.Contains(err.Error(), "renew it there") ||
		strings.Contains(err.Error(), "remote.ca") {
		t.Error(err)
	}
}

// Ensure that redirects of a web server are followed, but never to a connection without TLS, and that those
// of storage are errors that name region and endpoint.
func TestRedirects(t *testing.T) {
	s := newStorage(t)
	s.Put(t, "records", []byte("0123456789"))
	var to func(r *http.Request) string
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, to(r), http.StatusFound)
	})
	plain, secure := httptest.NewServer(handler), httptest.NewTLSServer(handler)
	defer plain.Close()
	defer secure.Close()
	ca := t.TempDir() + "/ca.pem"
	write(t, ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}))
	to = func(*http.Request) string { return s.URL + "/photos/records" }
	s.Spoil(func(w http.ResponseWriter, r *http.Request, answer http.Handler) {
		expect.Equal(t, r.Referer()+r.Header.Get("Authorization"), "", "what another server learns")
		answer.ServeHTTP(w, r)
	})
	if got, err := first(t, strings.Replace(plain.URL, "://", "://me:secret@", 1)+"/x?sig=hidden", nil); err != nil || string(got) != "0123456789" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := first(t, secure.URL+"/x", map[string]any{"ca": ca}); !errors.Is(err, source.ErrInvalid) ||
		!strings.Contains(err.Error(), "from https to http") {
		t.Errorf("from https to http: %v", err)
	}
	for location, want := range map[string]string{"file:///etc/passwd": "redirects to file://", "http:///x": "no address",
		"http://me:secret@a:b/x?sig=secret": `no address (Location: "a:b/x")`, "http://[::1/x": "no address", "/%zz": "no address",
		"http://127.0.0.1:99999/": "invalid port"} {
		elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", location)
			w.WriteHeader(http.StatusFound)
		}))
		defer elsewhere.Close()
		_, err := first(t, elsewhere.URL+"/x", nil)
		if !errors.Is(err, source.ErrInvalid) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), elsewhere.URL+"/x") ||
			strings.Contains(err.Error(), "secret") {
			t.Errorf("to %s: %v", location, err)
		}
	}
	var broken atomic.Int32 // answers before a whole one
	head, whole := "", "Location: "+plain.URL+"/x\r\nContent-Length: 0\r\n\r\n"
	raw := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := w.(http.Hijacker).Hijack() // Go's server sends no such headers
		fatal.If(t, err)
		if broken.Add(-1) < 0 {
			head = whole
		}
		fmt.Fprint(c, "HTTP/1.1 302 Found\r\n"+head)
		c.Close()
	}))
	defer raw.Close()
	for address, remote := range map[string]map[string]any{raw.URL + "/x": nil, "s3://photos/records": {"endpoint": raw.URL}} {
		for _, head = range []string{"Location: /a\x01?sig=secret\r\nContent-Length: 0\r\n\r\n", "Loc\x01secret"} {
			broken.Store(100)
			if _, err := first(t, address, remote); !errors.Is(err, source.ErrInvalid) ||
				!strings.Contains(err.Error(), "control characters") || strings.Contains(err.Error(), "secret") {
				t.Errorf("control characters: %v", err)
			}
		}
	}
	for _, head = range []string{"Location: /a\r\nLoca", "Location", "X-\"\\x01"} { // cut
		broken.Store(2)
		if _, err := first(t, raw.URL+"/x", nil); err != nil {
			t.Errorf("%q: %v", head, err)
		}
	}
	to = func(r *http.Request) string { return plain.URL + r.URL.Path + "x" }
	expect.Fails(first(t, plain.URL+"/x", nil))(t, source.ErrInvalid, "10 times")
	s.Spoil(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.Header().Set("x-amz-bucket-region", "eu-west-1")
		w.WriteHeader(http.StatusMovedPermanently)
		fmt.Fprint(w, "<Error><Code>PermanentRedirect</Code><Message>Use the specified endpoint.</Message>"+
			"<Endpoint>photos.s3.eu-west-1.example</Endpoint></Error>")
	})
	begun := time.Now()
	_, err := first(t, "s3://photos/records", map[string]any{"endpoint": s.URL, "region": "us-east-1"})
	if !errors.Is(err, source.ErrInvalid) || !strings.Contains(err.Error(), "301 PermanentRedirect") ||
		!strings.Contains(err.Error(), "remote.region is us-east-1") || !strings.Contains(err.Error(), "remote.endpoint is "+s.URL) {
		t.Errorf("after %v: %v", time.Since(begun), err)
	}
}

// Ensure that the user, the password and the query of an address go to the web server, and nowhere else.
func TestPrivateParts(t *testing.T) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "me" || password != "p/w" || r.URL.RawQuery != "sig=hidden" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		http.ServeContent(w, r, "", time.Unix(1, 0), bytes.NewReader([]byte("0123456789")))
	}))
	defer web.Close()
	address := strings.Replace(web.URL, "://", "://me:p%2Fw@", 1) + "/a/records?sig=hidden"
	s := opened(t, source.Settings{"kind": "raw", "path": address, "sample_bytes": 10})
	got := make([]byte, 10)
	if _, err := s.Read(t.Context(), 0, got); err != nil || string(got) != "0123456789" {
		t.Errorf("%q, %v", got, err)
	}
	if where := s.Where(0); !strings.HasPrefix(where, web.URL+"/a/records") || strings.Contains(where, "hidden") {
		t.Errorf("sample 0 is at %s", where)
	}
	_, err := first(t, web.URL+"/a/records", nil)
	if !errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), "401") || !strings.Contains(err.Error(), "credentials") {
		t.Errorf("without a password: %v", err)
	}
}

// Ensure that a redirect of storage without a body, and a server without TLS behind an https endpoint, are errors at
// once that say what the server did and which settings to change.
func TestWrongEndpoints(t *testing.T) {
	s := newStorage(t)
	s.Put(t, "records", []byte("0123456789"))
	plain := s.URL
	for _, path := range []string{"s3://photos/records", strings.Replace(plain, "http:", "https:", 1) + "/photos/records"} {
		var remote map[string]any
		if strings.HasPrefix(path, "s3:") {
			remote = map[string]any{"endpoint": strings.Replace(plain, "http:", "https:", 1)}
		}
		if _, err := first(t, path, remote); !errors.Is(err, source.ErrInvalid) || !strings.Contains(err.Error(), "without TLS; write http://") {
			t.Errorf("%s on a server without TLS: %v", path, err)
		}
	}
	s.Spoil(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.Header().Set("Location", "http://other.example/photos/records")
		w.WriteHeader(http.StatusTemporaryRedirect)
	})
	_, err := first(t, "s3://photos/records", map[string]any{"endpoint": plain, "region": "us-east-1"})
	if want := "the server answered 307 Temporary Redirect; remote.region is us-east-1, remote.endpoint is " + plain; !errors.Is(err, source.ErrInvalid) ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("a redirect: %v, want %s", err, want)
	}
}

// Ensure that a profile without keys, or with half of them, is one error that names file, profile and key, and that others
// have the keys that the file says.
func TestProfiles(t *testing.T) {
	s := newStorage(t)
	s.Put(t, "records", []byte("1234567890"))
	withoutKeys(t)
	const half, pair = "aws_access_key_id and aws_secret_access_key", "aws_access_key_id = ID\naws_secret_access_key = "
	for _, c := range []struct {
		file, profile, id, secret, want string
		role                            bool // the machine has a role
	}{
		{file: "[default]\r\n" + strings.ReplaceAll(pair, "\n", "\r\n") + "x\r\n", want: "signed ID"},
		{file: "[default] # mine\n; a comment\n" + pair + "\"x\"\n", want: "signed ID"},
		{file: "[default]\naws_access_key_id='ID'\naws_secret_access_key=x # old\n", want: "signed ID"},
		{file: "[default]\nregion = x\n", want: "signed "},
		{file: "[other]\n" + pair + "x\n", want: "signed "},
		{want: "signed "},
		{file: "[default]\naws_access_key_id = ID\n", want: half},
		{file: "[default]\naws_secret_access_key = x\n", want: half},
		{file: "[default]\n" + pair + "\n", want: half},
		{file: "[default]\nrole_arn = arn\nsource_profile = a\n", want: "it has role_arn, which is not supported"},
		{file: "[default]\ncredential_process = /bin/false now\n", want: "credential_process: exit status 1"},
		{file: "[default]\ncredential_process = /bin/false\n", want: `credential_process has no argument; write "env " before`},
		{file: "[default]\ncredential_process = echo {}\n", want: "credential_process: its answer has not both"},
		{file: "[lab]\ncredential_process = echo {\"AccessKeyId\":\"ID\"}\n", profile: "lab", role: true, want: "its answer has not both"},
		{file: "[default]\nsso_account_id = 1\nsso_role_name = a\n", want: "sso_role_name"},
		{file: "[default\n" + pair + "x\n", want: "a line is no setting"},
		{file: "[default]\n" + pair + "x\naws_session_token = A\nWRAPPED\n", want: "a line is no setting"},
		{file: "[other]\n" + pair + "x\n", profile: "lab", want: `section "lab" does not exist`},
		{file: "[lab]\nregion = x\n", profile: "lab", want: "signed "},
		{file: "[lab]\nregion = x\n", profile: "lab", role: true, want: "signed ROLE1session-1"},
		{file: "[lab]\naws_access_key_id = ID\n", profile: "lab", role: true, want: "remote: {credentials: iam}"},
		{profile: "lab", want: "no such file"},
		{id: "ID", want: "the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY): one of the two is missing"},
		{secret: "x", want: "one of the two is missing"},
	} {
		t.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "")
		if c.role {
			newMetadata(t, "reader", time.Hour)
		}
		file := t.TempDir() + "/keys"
		if c.file != "" {
			write(t, file, []byte(c.file))
		}
		for name, value := range map[string]string{"AWS_SHARED_CREDENTIALS_FILE": file, "AWS_CONFIG_FILE": file + ".none",
			"AWS_PROFILE": c.profile, "AWS_ACCESS_KEY_ID": c.id, "AWS_SECRET_ACCESS_KEY": c.secret} {
			t.Setenv(name, value)
		}
		keys := signed(s)
		_, err := first(t, "s3://photos/records", map[string]any{"endpoint": s.URL})
		if want, ok := strings.CutPrefix(c.want, "signed "); ok {
			if err != nil || strings.Join(keys(), " ") != want {
				t.Errorf("%+v: %v, signed with %q", c, err, keys())
			}
		} else if err == nil || !errors.Is(err, source.ErrInvalid) || !strings.Contains(err.Error(), c.want) ||
			strings.Contains(err.Error(), "WRAPPED") || c.id+c.secret == "" && !strings.Contains(err.Error(), fmt.Sprintf("profile %s of %s", cmp.Or(c.profile, "default"), file)) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// Ensure that a refused request says where its keys came from, or that there were none, which settings choose
// others, and shows no key.
func TestWhereTheKeysCameFrom(t *testing.T) {
	s := newStorage(t)
	s.Spoil(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, "<Error><Code>SignatureDoesNotMatch</Code><Message>no</Message></Error>")
	})
	file := t.TempDir() + "/keys"
	write(t, file, []byte("[lab]\naws_access_key_id = FILEKEY\naws_secret_access_key = file-secret\n"))
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", file)
	t.Setenv("AWS_CONFIG_FILE", file+".none")
	for _, c := range []struct {
		credentials, profile string
		environment          bool
		want                 []string
	}{
		{"", "", true, []string{"the keys came from the environment (AWS_ACCESS_KEY_ID", "remote.credentials and remote.profile"}},
		{"auto", "lab", false, []string{"the keys came from profile lab of " + file, "remote.profile"}},
		{"file", "lab", true, []string{"the keys came from profile lab of " + file}},
		{"auto", "", false, []string{"no signature: there are no keys in the environment", "profile default of " + file,
			"has a role, set remote: {credentials: iam}"}},
		{"environment", "", false, []string{"remote.credentials is environment, and AWS_ACCESS_KEY_ID"}},
		{"none", "", true, []string{"no signature, because remote.credentials is none"}},
	} {
		for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} {
			t.Setenv(name, map[bool]string{true: "env-secret"}[c.environment])
		}
		_, err := first(t, "s3://photos/records", map[string]any{"endpoint": s.URL, "credentials": c.credentials, "profile": c.profile})
		if !errors.Is(err, os.ErrPermission) || strings.Contains(err.Error(), "-secret") || strings.Contains(err.Error(), "FILEKEY") {
			t.Errorf("%+v: %v", c, err)
			continue
		}
		for _, want := range append(c.want, "403 SignatureDoesNotMatch: no") {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%+v: %v, want %q", c, err, want)
			}
		}
	}
	_, err := first(t, "s3://photos/records", map[string]any{"endpoint": s.URL, "credentials": "file", "profile": "other"})
	if !errors.Is(err, source.ErrInvalid) || !strings.Contains(err.Error(), "remote.credentials is file: no keys in profile other of "+file) {
		t.Errorf("a profile that is missing: %v", err)
	}
	s.Spoil(nil)
	s.Put(t, "records", []byte("0123456789"))
	t.Setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
	t.Setenv("AWS_ENDPOINT_URL_S3", s.URL)
	if got, err := first(t, "s3://photos/records", map[string]any{"credentials": "file", "profile": "lab"}); err != nil || string(got) != "0123456789" {
		t.Errorf("AWS_ENDPOINT_URL_S3: %q, %v", got, err)
	}
	t.Setenv("AWS_ENDPOINT_URL_S3", "")
	t.Setenv("AWS_ENDPOINT_URL", "storage:9000")
	if _, err := first(t, "s3://photos/records", nil); err == nil || !strings.Contains(err.Error(), `AWS_ENDPOINT_URL is "storage:9000", and must be like https://`) {
		t.Errorf("an endpoint without a scheme: %v", err)
	}
}
