package memory

import (
	"path/filepath"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
)

// Ensure that the mode of huge pages is the one that the kernel marks, and none without the file.
func TestHugePages(t *testing.T) {
	const name = "sys/kernel/mm/transparent_hugepage/enabled"
	for text, mode := range map[string]string{"always [madvise] never\n": "madvise", "[always] madvise never\n": "always",
		"always madvise [never]\n": "never", "": ""} {
		expect.Equal(t, HugePages(files(t, map[string]string{name: text}).root), mode, "%q", text)
	}
	expect.Equal(t, HugePages(files(t, map[string]string{filepath.Dir(name) + "/defrag": "[never]"}).root), "", "without the file")
}
