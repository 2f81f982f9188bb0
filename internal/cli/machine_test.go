package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/shm/memory"
)

// goodMachine has nothing to change.
func goodMachine() machine {
	return machine{kernel: "6.1.0-18-amd64", huge: "madvise", files: 65536,
		memory: memory.Space{Left: 1 << 30, Total: 4 << 30}, tmpfs: memory.Space{Left: 1 << 30, Total: 2 << 30},
		helper: "/usr/bin/stocached-decode", needsHelper: true}
}

// Ensure that doctor says of each part of a machine the number, the limit and what to change, and nothing of a good one.
func TestMachineFindings(t *testing.T) {
	for name, c := range map[string]struct {
		change func(m *machine)
		what   string // has something to change; "": nothing has
		texts  []string
	}{
		"good":                {func(*machine) {}, "", nil},
		"newer kernel":        {func(m *machine) { m.kernel = "10.0.1" }, "", nil},
		"no need to say":      {func(m *machine) { m.kernel, m.huge = "", "" }, "", nil},
		"old kernel":          {func(m *machine) { m.kernel = "6.0.19" }, "kernel", []string{"Linux 6.0.19", "from Linux 6.1 on"}},
		"older kernel":        {func(m *machine) { m.kernel = "5.15.0-91-generic" }, "kernel", []string{"Linux 5.15.0-91-generic"}},
		"no huge pages":       {func(m *machine) { m.huge = "never" }, "huge pages", []string{"write madvise to /sys/kernel/mm"}},
		"little memory":       {func(m *machine) { m.memory.Left = 63 << 20 }, "memory", []string{"63.0 MiB of 4.0 GiB", "less than 64.0 MiB", "cgroup"}},
		"small /dev/shm":      {func(m *machine) { m.tmpfs = memory.Space{Left: 57 << 20, Total: 64 << 20} }, "/dev/shm", []string{"57.0 MiB of 64.0 MiB", "--shm-size="}},
		"no /dev/shm":         {func(m *machine) { m.tmpfsError = errors.New("/dev/shm is not on a tmpfs") }, "/dev/shm", []string{"not on a tmpfs"}},
		"few descriptors":     {func(m *machine) { m.files = 1024 }, "descriptors", []string{"1,024 files", "less than 4,096", "ulimit -n"}},
		"no helper":           {func(m *machine) { m.helper = "" }, "stocached-decode", []string{"no server does that", "install it"}},
		"no need of a helper": {func(m *machine) { m.helper, m.needsHelper = "", false }, "", nil},
	} {
		m := goodMachine()
		c.change(&m)
		changes := 0
		for _, one := range m.examine() {
			if one.Change == "" {
				continue
			}
			changes++
			expect.Equal(t, one.What, c.what, "%s: %+v", name, one)
			for _, text := range c.texts {
				if !strings.Contains(one.Answer+"; "+one.Change, text) {
					t.Errorf("%s: no %q in %s; %s", name, text, one.Answer, one.Change)
				}
			}
		}
		if (changes == 1) != (c.what != "") {
			t.Errorf("%s: %d changes", name, changes)
		}
	}
}

// Ensure that doctor reads the kernel's files.
func TestThisMachine(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{"proc/sys/kernel/osrelease": "5.15.7\n",
		"sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]\n"} {
		path := filepath.Join(root, name)
		fatal.If(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)))
	}
	t.Setenv("STOCACHED_DECODE", "/somewhere/stocached-decode")
	m, err := thisMachine(root)
	if err != nil || m.kernel != "5.15.7" || m.huge != "never" || m.helper != "/somewhere/stocached-decode" ||
		m.memory.Total == 0 || m.files == 0 || m.tmpfsError == nil && m.tmpfs.Left > m.tmpfs.Total {
		t.Errorf("%+v, %v", m, err)
	}
	if m, err = thisMachine(t.TempDir()); err != nil || m.kernel != "" || m.huge != "" {
		t.Errorf("%+v, %v", m, err)
	}
}
