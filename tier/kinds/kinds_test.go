package kinds_test

import (
	"strings"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
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
	expect.NoError(t, kinds.Check([]source.Settings{disk("/fast"), disk("/slow")}, about))
	err := kinds.Check([]source.Settings{disk("/fast"), disk("/slow"), disk("/fast")}, about)
	if err == nil || !strings.Contains(err.Error(), "tiers[2]: invalid tier: dir: tiers[0] has this folder") {
		t.Error(err)
	}
}

// Ensure that a tier on a disk is named if it stands behind one that machines share, and no other tier.
func TestTiersOutOfPlace(t *testing.T) {
	disk, cluster := source.Settings{"kind": "disk", "dir": "/fast", "size": "1GiB"}, source.Settings{"kind": "cluster"}
	for _, c := range []struct {
		tiers []source.Settings
		want  map[int]string // a part of each advice
	}{
		{nil, nil},
		{[]source.Settings{disk}, nil},
		{[]source.Settings{cluster}, nil},
		{[]source.Settings{disk, disk, cluster}, nil},
		{[]source.Settings{cluster, disk}, map[int]string{1: "put it before tiers[0] (cluster)"}},
		{[]source.Settings{disk, cluster, disk, disk}, map[int]string{2: "before tiers[1] (cluster)", 3: "before tiers[1] (cluster)"}},
	} {
		got := kinds.Misplaced(c.tiers)
		expect.Equal(t, len(got), len(c.want), "%v: misplaced tiers of %v, %v", c.tiers, got, c.want)
		for k, want := range c.want {
			if !strings.Contains(got[k], want) {
				t.Errorf("%v: tiers[%d]: %q, want %q", c.tiers, k, got[k], want)
			}
		}
	}
}
