package kinds_test

import (
	"strings"
	"testing"

	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/tier"
	"github.com/stocached/stocached/tier/kinds"
)

// Ensure that two tiers do not have one file.
func TestTwoTiersInAFolder(t *testing.T) {
	disk := func(dir string) source.Settings {
		return source.Settings{"kind": "disk", "dir": dir, "size": "1GiB"}
	}
	about := tier.About{Cache: "pets"}
	if err := kinds.Check([]source.Settings{disk("/fast"), disk("/slow")}, about); err != nil {
		t.Error(err)
	}
	err := kinds.Check([]source.Settings{disk("/fast"), disk("/slow"), disk("/fast")}, about)
	if err == nil || !strings.Contains(err.Error(), "tiers[2]: invalid tier: dir: tiers[0] has this folder") {
		t.Error(err)
	}
}
