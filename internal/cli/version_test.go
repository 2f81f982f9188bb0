package cli

import (
	"os"
	"regexp"
	"runtime/debug"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
)

// Ensure that the version is that of the C library, and is printed.
func TestVersion(t *testing.T) {
	source := fatal.Value(os.ReadFile("../../cclient/src/internal.h"))(t)
	match := regexp.MustCompile(`#define STOC_PRODUCT_VERSION "([^"]*)"`).FindSubmatch(source)
	if match == nil || string(match[1]) != version {
		t.Errorf("the C library has version %q, this program %s", match, version)
	}
	wantFields(t, decode[jsonObject](t, ok(t, "version", "--json")), jsonObject{"version": version, "layout": 1.0})
	contains(t, ok(t, "version"), "version    "+version+"\n", "signature  0x")
	b := &debug.BuildInfo{Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"},
		{Key: "vcs.modified", Value: "true"}}}
	expect.Equal(t, revision(b), "abc+", "")
	expect.Equal(t, revision(nil), "", "")
	commit = "of a package"
	defer func() { commit = "" }()
	expect.Equal(t, revision(b), "of a package", "")
}
