package s3

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/source"
)

// Ensure that keys of a process stay in use while they are valid, if the process fails, and that then the error passes.
func TestProcessThatFails(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SECRET_KEY", "AWS_PROFILE"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_CONFIG_FILE", filepath.Join(dir, "config"))
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", filepath.Join(dir, "credentials"))
	for _, setting := range []string{"auto", "file"} {
		for _, valid := range []time.Duration{time.Hour, -time.Hour} {
			answer := filepath.Join(dir, "answer")
			fatal.If(t, os.WriteFile(filepath.Join(dir, "credentials"), []byte("[default]\ncredential_process = cat "+answer+"\n"), 0o600))
			fatal.If(t, os.WriteFile(answer, fmt.Appendf(nil, `{"Version": 1, "AccessKeyId": "ID", "SecretAccessKey": "x", "Expiration": %q}`,
				time.Now().Add(valid).UTC().Format(time.RFC3339)), 0o600))
			keys := fatal.Value((&settings{Credentials: setting}).keys("127.0.0.1"))(t)
			if v := fatal.Value(keys.GetWithContext(nil))(t); v.AccessKeyID != "ID" {
				t.Fatalf("%s: the keys are of %q", setting, v.AccessKeyID)
			}
			fatal.If(t, os.Remove(answer))
			keys.Expire() // as at 80 % of the time that they are valid
			v, err := keys.GetWithContext(nil)
			if valid > 0 && (err != nil || v.AccessKeyID != "ID") {
				t.Errorf("%s: a process that fails takes valid keys away: %+v, %v", setting, v.AccessKeyID, err)
			}
			if valid < 0 && (!errors.Is(err, source.ErrUnavailable) || errors.Is(err, source.ErrInvalid)) {
				t.Errorf("%s: keys that have ended: %+v, %v", setting, v.AccessKeyID, err)
			}
		}
	}
}
