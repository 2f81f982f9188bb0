package kinds_test

import (
	"context"
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/decode"
	"github.com/stocached/stocached/source/kinds"
	"github.com/stocached/stocached/source/raw"
	"github.com/stocached/stocached/source/sourcetest"
	"github.com/stocached/stocached/source/wrap"
)

// known returns the keys that an error about an unknown key lists.
func known(t *testing.T, err error) []string {
	t.Helper()
	if !errors.Is(err, source.ErrInvalid) {
		t.Fatalf("an unknown key is %v", err)
	}
	m := regexp.MustCompile(`known are: ([a-z_0-9, ]+)`).FindStringSubmatch(err.Error())
	if m == nil {
		t.Fatalf("%v does not say which keys there are", err)
	}
	return strings.Split(m[1], ", ")
}

// Ensure that docs/spec/sources.md lists the keys of all kinds and wrappers, and no others.
func TestDocumentedKeys(t *testing.T) {
	documented := sourcetest.Documented(t, "../..")
	unknown := source.Settings{"no such key": 1}
	accepted := map[string][]string{}
	for _, k := range kinds.All {
		_, err := k.Open(context.Background(), unknown)
		accepted[k.Name] = known(t, err)
	}
	path := t.TempDir() + "/records"
	fatal.If(t, os.WriteFile(path, make([]byte, 10), 0o600))
	s, err := raw.Kind.Open(context.Background(), source.Settings{"path": path, "sample_bytes": 5})
	fatal.If(t, err)
	defer s.Close()
	for _, key := range []string{"limits", "retry", "read_ahead"} {
		_, err := wrap.Apply(s, map[string]any{key: map[string]any(unknown)}, nil)
		accepted[key] = known(t, err)
	}
	_, err = source.Remote{Remote: unknown}.Place(new("s3://bucket/name"))
	accepted["remote"] = known(t, err)
	_, err = decode.New(s, unknown)
	accepted["decode"] = known(t, err)
	for where, keys := range accepted {
		slices.Sort(documented[where])
		expect.Slice(t, documented[where], keys, "%v", where)
		delete(documented, where)
	}
	if len(documented) > 0 {
		t.Errorf("docs/spec/sources.md has keys of %q, which do not exist", documented)
	}
}
