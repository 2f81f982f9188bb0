//go:build faultpoints

package disk

import (
	"fmt"
	"os/exec"
	"testing"
)

// Ensure that the file is sound after a kill at each step of a fill and of an eviction.
func TestKilledAtEachStep(t *testing.T) {
	for _, point := range []string{"claim.entry", "claim.phase", "claim.word", "slot.intent", "slot.taken", "slot.named", "write.half",
		"write.done", "publish.meta", "publish.word", "publish.entry", "evict.listed", "evict.retired", "evict.moved",
		"evict.emptied", "evict.unlisted"} {
		t.Run(point, func(t *testing.T) {
			for _, pass := range []int{1, 7, 30} {
				dir, killed := t.TempDir(), false
				run(t, dir, []string{fmt.Sprintf("STOCACHED_FAULT=%s@%d=kill", point, pass)}, func(c *exec.Cmd) {
					err := c.Wait()
					killed = err != nil && err.Error() == "signal: killed"
				})
				if !killed {
					t.Errorf("pass %d: the child ended otherwise", pass)
				}
				checkFile(t, dir)
			}
		})
	}
}
