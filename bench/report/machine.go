package report

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
)

// Machine describes the machine of a measurement, without names or paths.
type Machine struct {
	CPU      string            `json:"cpu"`
	Cores    int               `json:"cores"`
	MemoryKB uint64            `json:"memory_kb"`
	Kernel   string            `json:"kernel"`
	Tmpfs    string            `json:"tmpfs"`     // mount options of /dev/shm
	ShmemTHP string            `json:"shmem_thp"` // huge pages for memfds
	Virtual  bool              `json:"virtual"`   // a virtual machine, whose neighbours are unknown
	Load     string            `json:"load"`      // averages over 1, 5, 15 minutes when the run began
	LoadEnd  string            `json:"load_end"`  // at the end; about 1 to 2 of it is the run's own
	Versions map[string]string `json:"versions"`  // of Go, the C compiler, Python and its packages
}

// DescribeMachine describes this machine. python "": without Python's versions.
func DescribeMachine(python, cc string) Machine {
	m := Machine{Cores: runtime.NumCPU(), Load: Load(),
		Versions: map[string]string{"go": strings.TrimPrefix(runtime.Version(), "go")}}
	for line := range lines("/proc/cpuinfo") {
		key, value, _ := strings.Cut(line, ":")
		switch strings.TrimSpace(key) {
		case "model name", "CPU part":
			m.CPU = strings.TrimSpace(value)
		case "flags":
			m.Virtual = strings.Contains(value, " hypervisor ")
		}
	}
	for line := range lines("/proc/meminfo") {
		fmt.Sscanf(line, "MemTotal: %d kB", &m.MemoryKB) //nolint:errcheck // of most lines it finds nothing
	}
	m.Kernel = first("/proc/sys/kernel/osrelease")
	for line := range lines("/proc/self/mounts") {
		if f := strings.Fields(line); len(f) > 3 && f[1] == "/dev/shm" {
			m.Tmpfs = f[2] + " " + f[3]
		}
	}
	m.ShmemTHP = first("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
	if out, err := exec.Command(cc, "-dumpfullversion").Output(); err == nil {
		m.Versions[cc] = strings.TrimSpace(string(out))
	}
	if python != "" {
		m.python(python)
	}
	return m
}

func (m *Machine) python(python string) {
	const script = `import sys, importlib.metadata as m
print("python", sys.version.split()[0])
for name in ("numpy", "torch", "stocaching", "pillow", "datasets", "grain", "litdata", "monai",
             "mosaicml-streaming", "spdl", "torchdata", "webdataset"):
    try: print(name, m.version(name))
    except m.PackageNotFoundError: pass`
	out, _ := exec.Command(python, "-c", script).Output()
	for line := range strings.Lines(string(out)) {
		name, version, _ := strings.Cut(strings.TrimSpace(line), " ")
		m.Versions[name] = version
	}
}

// Peers adds the versions of the servers that ours is compared with.
func (m *Machine) Peers() {
	for _, program := range []string{"redis-server", "memcached"} {
		if out, err := exec.Command(program, "--version").Output(); err == nil {
			m.Versions[program] = regexp.MustCompile(`\d+(\.\d+)+`).FindString(string(out))
		}
	}
}

// Load returns the load averages.
func Load() string {
	return strings.Join(append(strings.Fields(first("/proc/loadavg")), "", "", "")[:3], " ")
}

func first(path string) string {
	for line := range lines(path) {
		return strings.TrimSpace(line)
	}
	return ""
}

func lines(path string) func(func(string) bool) {
	return func(yield func(string) bool) {
		f, err := os.Open(path)
		if err != nil {
			return
		}
		defer f.Close()
		for s := bufio.NewScanner(f); s.Scan(); {
			if !yield(s.Text()) {
				return
			}
		}
	}
}
