package memory

import (
	"os"
	"path/filepath"
	"strings"
)

// HugePages says which processes may have huge pages, in the words of the administrator: "always",
// "madvise" or "never"; "": the kernel does not say. root is "/"; tests put files of their own
// elsewhere.
func HugePages(root string) string {
	text, _ := os.ReadFile(filepath.Join(root, "/sys/kernel/mm/transparent_hugepage/enabled"))
	_, after, _ := strings.Cut(string(text), "[")
	mode, _, _ := strings.Cut(after, "]")
	return mode
}
