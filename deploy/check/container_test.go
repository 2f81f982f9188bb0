package check

import (
	"debug/elf"
	"encoding/pem"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"

	"github.com/stocached/stocached/internal/verify/fatal"
)

const top = "../.."

// image is what the last stage of the Containerfile says.
type image struct {
	base, user      string
	labels, environ map[string]string
	health, command []string
	healthEvery     time.Duration
}

// readImage parses the Containerfile like BuildKit.
func readImage(t *testing.T) image {
	t.Helper()
	f := fatal.Value(os.Open("../image/Containerfile"))(t)
	defer f.Close()
	parsed := fatal.Value(parser.Parse(f))(t)
	for _, w := range parsed.Warnings {
		t.Errorf("Containerfile: %s", w.Short)
	}
	stages, _, err := instructions.Parse(parsed.AST, nil)
	if err != nil {
		t.Fatal(err)
	}
	last := stages[len(stages)-1]
	i := image{base: last.BaseName, labels: map[string]string{}, environ: map[string]string{}}
	var entry, arguments []string
	for _, command := range last.Commands {
		switch c := command.(type) {
		case *instructions.LabelCommand:
			for _, l := range c.Labels {
				i.labels[l.Key] = strings.Trim(l.Value, `"`)
			}
		case *instructions.EnvCommand:
			for _, e := range c.Env {
				i.environ[e.Key] = e.Value
			}
		case *instructions.UserCommand:
			i.user = c.User
		case *instructions.HealthCheckCommand:
			i.health, i.healthEvery = c.Health.Test, c.Health.Interval
		case *instructions.EntrypointCommand:
			entry = c.CmdLine
		case *instructions.CmdCommand:
			arguments = c.CmdLine
		}
	}
	i.command = slices.Concat(entry, arguments)
	return i
}

// Ensure that the image begins with nothing, runs as a user that is not root, by number, and says
// what it is.
func TestContainerfile(t *testing.T) {
	i := readImage(t)
	uid, group, _ := strings.Cut(i.user, ":")
	for _, id := range []string{uid, group} {
		if n, err := strconv.Atoi(id); err != nil || n < 1000 {
			t.Errorf("user %q: Kubernetes needs a number to see that it is not root", i.user)
		}
	}
	if i.base != "scratch" || i.healthEvery == 0 || !slices.Equal(i.health, []string{"CMD", i.command[0], "health"}) {
		t.Errorf("base %q, health check %q every %v", i.base, i.health, i.healthEvery)
	}
	for label, want := range map[string]string{"version": "", "source": "https://", "licenses": "Apache-2.0", "title": "stocached",
		"description": "shared memory", "documentation": "docs/guides/kubernetes.md"} {
		value := i.labels["org.opencontainers.image."+label]
		if !strings.Contains(value, want) || value == "" {
			t.Errorf("label %s: %q", label, value)
		}
	}
}

// buildContext copies what the builder gets of the repository, as the ignore file beside the
// Containerfile says.
func buildContext(t *testing.T) (dir string) {
	t.Helper()
	f := fatal.Value(os.Open("../image/Containerfile.dockerignore"))(t)
	defer f.Close()
	patterns := fatal.Value(ignorefile.ReadAll(f))(t)
	ignore := fatal.Value(patternmatcher.New(patterns))(t)
	tracked, err := exec.Command("git", "-C", top, "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	for name := range strings.SplitSeq(strings.TrimSuffix(string(tracked), "\x00"), "\x00") {
		ignored := fatal.Value(ignore.MatchesOrParentMatches(name))(t)
		st, err := os.Stat(filepath.Join(top, name))
		if ignored || err != nil || !st.Mode().IsRegular() { // not there: removed, and not committed yet
			continue
		}
		text, err := os.ReadFile(filepath.Join(top, name))
		if err == nil {
			err = os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, st.Mode())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// container is a server in the root file system of the image, as its user, with everything read-only
// but /dev/shm. No container engine is needed.
type container struct {
	t       *testing.T
	image   image
	process *exec.Cmd
	server  int    // its process
	log     string // a file
	ended   chan error
}

// enter makes the mounts of a container in a mount namespace of its own, then runs a command as a
// user. $1: the root. $2: the shared memory. $3: user:group. $4...: the command.
const enter = `set -e
root=$1 shm=$2 user=$3; shift 3
mount --bind "$root" "$root"
mount --rbind /proc "$root/proc"
touch "$root/dev/null"
mount --bind /dev/null "$root/dev/null"
mount --bind "$shm" "$root/dev/shm"
mount -o remount,bind,ro "$root"
`

// pod returns a command in a container of its own: in the root, with this shared memory, as this
// user. It skips the test where namespaces are not permitted.
func (i image) pod(t *testing.T, root, shm, user string, command ...string) *exec.Cmd {
	t.Helper()
	uid, gid, _ := strings.Cut(user, ":")
	options, last := []string{"--mount"}, `exec chroot --userspec="$user" --groups= "$root" "$@"`
	if !asRoot() {
		options = append(options, "--user", "--map-root-user")
		last = `exec unshare --user --mount --map-user=` + uid + ` --map-group=` + gid + ` --root="$root" "$@"`
	}
	if out, err := exec.Command("unshare", append(options, "true")...).CombinedOutput(); err != nil {
		t.Skipf("making namespaces is not permitted here, so the image is not run: %s", out)
	}
	arguments := slices.Concat(options, []string{"sh", "-c", enter + last, "sh", root, shm, user}, command)
	p := exec.Command("unshare", arguments...)               // each program replaces the one before
	p.Env = append(i.variables(), "PATH="+os.Getenv("PATH")) // variables for unshare and mount
	return p
}

func asRoot() bool { return os.Geteuid() == 0 }

// run starts the command of the image.
func (i image) run(t *testing.T, root, shm string) *container {
	t.Helper()
	c := &container{t: t, image: i, log: filepath.Join(t.TempDir(), "log"), ended: make(chan error, 1),
		process: i.pod(t, root, shm, i.user, i.command...)}
	log := fatal.Value(os.Create(c.log))(t)
	defer log.Close()
	c.process.Stdout, c.process.Stderr = log, log
	fatal.If(t, c.process.Start())
	go func() { c.ended <- c.process.Wait() }()
	c.server = c.process.Process.Pid
	return c
}

func (i image) variables() (all []string) {
	for key, value := range i.environ {
		all = append(all, key+"="+value)
	}
	return all
}

// exec runs a command in the container, as docker exec and the probes of Kubernetes do.
func (c *container) exec(command ...string) (out string, err error) {
	c.t.Helper()
	uid, gid, _ := strings.Cut(c.image.user, ":")
	options := []string{"--target", strconv.Itoa(c.server), "--mount", "--root", "--wd"}
	if asRoot() {
		options = append(options, "--setuid", uid, "--setgid", gid)
	} else {
		options = append(options, "--user", "--preserve-credentials")
	}
	p := exec.Command("nsenter", append(append(options, "--"), command...)...)
	p.Env = append(c.image.variables(), "PATH="+os.Getenv("PATH"))
	text, err := p.CombinedOutput()
	return string(text), err
}

// await waits for a text in the log.
func (c *container) await(text string) {
	c.t.Helper()
	for limit := time.Now().Add(time.Minute); !strings.Contains(read(c.t, c.log), text); time.Sleep(10 * time.Millisecond) {
		if len(c.ended) > 0 || time.Now().After(limit) {
			c.t.Fatalf("no %q in\n%s", text, read(c.t, c.log))
		}
	}
}

// makeRoot makes the root file system of the image.
func makeRoot(t *testing.T, root string, environ ...string) {
	t.Helper()
	if out, err := exec.Command(filepath.Join(top, "tools/setup.sh"), "has-codecs").CombinedOutput(); err != nil {
		t.Skipf("the headers for pictures are not here (make setup-c-tests installs them): %v %s", err, out)
	}
	build := exec.Command(filepath.Join(buildContext(t), "deploy/image/root.sh"), root)
	build.Env = append(os.Environ(), environ...)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// Ensure that buildah, which needs no daemon, builds the image from the last stage of the
// Containerfile, and that its entry point runs there as its user. root.sh makes what the stage before
// gives, because the image of Go is on another host.
func TestBuildah(t *testing.T) {
	buildah, err := exec.LookPath("buildah")
	if err != nil || !asRoot() {
		t.Skip("buildah is not installed (apt-get install buildah), or not run by root; TestImageRuns runs the entry point without it")
	}
	i, dir := readImage(t), t.TempDir()
	text := fatal.Value(os.ReadFile("../image/Containerfile"))(t)
	_, last, found := strings.Cut(string(text), "\nFROM scratch\n")
	last = "FROM scratch\n" + strings.ReplaceAll(last, "--from=build ", "")
	if !found || strings.Contains(last, "--from") {
		t.Fatalf("the last stage is\n%s", last)
	}
	for name, text := range map[string]string{"Containerfile": last, "config.yaml": "caches:\n  - {name: words, size: 8MiB, source: {kind: dir, path: /etc/stocached}}\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil { //nolint:gosec // for the user of the image
			t.Fatal(err)
		}
	}
	makeRoot(t, filepath.Join(dir, "image"))
	run := func(arguments ...string) string {
		t.Helper()
		storage := []string{"--root", filepath.Join(dir, "storage"), "--runroot", filepath.Join(dir, "run"), "--storage-driver", "vfs"}
		p := exec.Command(buildah, append(storage, arguments...)...)
		p.Env = append(os.Environ(), "BUILDAH_ISOLATION=chroot")
		var out, problems strings.Builder
		p.Stdout, p.Stderr = &out, &problems
		if err := p.Run(); err != nil && strings.Contains(problems.String(), "operation not permitted") {
			t.Skipf("this machine does not let buildah make containers: %s", problems.String())
		} else if err != nil {
			t.Fatalf("buildah %s: %v\n%s%s", strings.Join(arguments, " "), err, out.String(), problems.String())
		}
		return strings.TrimSpace(out.String())
	}
	run("bud", "--quiet", "--format", "docker", "-f", filepath.Join(dir, "Containerfile"), "-t", "stocached", dir)
	container := run("from", "--pull-never", "stocached")
	said := run("inspect", "--type", "image", "--format", "{{.OCIv1.Config.User}} {{.OCIv1.Config.Entrypoint}} {{.OCIv1.Config.Cmd}}", "stocached")
	about := strings.Fields(strings.NewReplacer("[", "", "]", "").Replace(said))
	if want := append([]string{i.user}, i.command...); !slices.Equal(about, want) {
		t.Errorf("the image says %q, the Containerfile %q", about, want)
	}
	start := append([]string{"run", "-v", filepath.Join(dir, "config.yaml") + ":/etc/stocached/config.yaml:ro", container}, i.command...)
	if said := run(append(start, "--check")...); !strings.Contains(said, "config.yaml: good, 1 cache") {
		t.Errorf("the entry point says %q", said)
	}
	if said := run("run", container, "stocached", "version"); !strings.Contains(said, "version") {
		t.Errorf("version says %q", said)
	}
	run("rm", container)
	run("rmi", "stocached")
}

// Ensure that the image's steps make a root file system in which the server runs as the image says. It is
// not root, files are read-only, and it uses the CA certificates of the image. The server fills
// samples from an HTTPS server, decodes pictures, is healthy, and ends with SIGTERM. Another pod shares its memory if
// it has the same user. What a container engine adds is not tested here.
func TestImageRuns(t *testing.T) {
	i := readImage(t)
	data := make([]byte, 10*24)
	for k := range data {
		data[k] = byte(k)
	}
	web := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", time.Unix(1_700_000_000, 0), strings.NewReader(string(data)))
	}))
	defer web.Close()
	certificates := filepath.Join(t.TempDir(), "certificates.pem")
	if err := os.WriteFile(certificates, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: web.Certificate().Raw}),
		0o600); err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	makeRoot(t, root, "CERTIFICATES="+certificates)
	fatal.If(t, os.Chmod(root, 0o755))
	config := "caches:\n  - {name: web, size: 16MiB, source: {kind: raw, sample_bytes: 24, path: " + web.URL + "/records.bin}}\n" +
		"  - {name: pictures, source: {kind: dir, path: /etc/pictures}, decode: {resize: [8, 8]}}\n"
	for _, name := range []string{"420.jpg", "rgb.png", "lossy.webp"} {
		picture, err := os.ReadFile(filepath.Join(top, "source/decode/testdata", name))
		if err := errors.Join(err, os.MkdirAll(filepath.Join(root, "etc/pictures"), 0o755),
			os.WriteFile(filepath.Join(root, "etc/pictures", name), picture, 0o644)); err != nil { //nolint:gosec // for the user of the image
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "etc/stocached/config.yaml"), []byte(config), 0o644); err != nil { //nolint:gosec // for the user of the image
		t.Fatal(err)
	}
	for _, program := range []string{i.command[0], filepath.Join(filepath.Dir(i.command[0]), "stocached-decode")} {
		wantStatic(t, filepath.Join(root, program))
	}

	shm := shared(t)
	fatal.If(t, os.Chmod(shm, 0o777|os.ModeSticky))
	c := i.run(t, root, shm)
	defer func() {
		_ = c.process.Process.Kill()
		<-c.ended
	}()
	c.await("serving 2 caches")
	for line := range strings.Lines(read(t, filepath.Join("/proc", strconv.Itoa(c.server), "status"))) {
		if fields := strings.Fields(line); fields[0] == "Uid:" && asRoot() && fields[1] != strings.Split(i.user, ":")[0] ||
			fields[0] == "CapEff:" && strings.Trim(fields[1], "0") != "" {
			t.Errorf("the server has %s", line)
		}
	}
	if out, err := c.exec(i.health[1:]...); err != nil || !strings.Contains(out, "well and serves") {
		t.Errorf("health: %v\n%s", err, out)
	}
	for _, name := range []string{"web", "pictures"} {
		if out, err := c.exec(i.command[0], "warm", name); err != nil || !strings.Contains(out, "holds every sample") {
			t.Errorf("warm: %v\n%s", err, out)
		}
	}
	out, err := i.pod(t, root, shm, i.user, i.command[0], "stats", "web", "--all").CombinedOutput()
	if !regexp.MustCompile(`(?m)^filled +10$`).Match(out) || !regexp.MustCompile(`(?m)^server +answers$`).Match(out) {
		t.Errorf("another pod with the same memory and user: %v\n%s", err, out)
	}
	if asRoot() { // there is one user only in the namespace of another user
		out, err = i.pod(t, root, shm, "65533:65532", i.command[0], "health", "web").CombinedOutput()
		if err == nil || !strings.Contains(string(out), "user") {
			t.Errorf("another pod with another user: %v\n%s", err, out)
		}
	}
	version := i.labels["org.opencontainers.image.version"]
	if out, err := c.exec(i.command[0], "version"); err != nil || !strings.Contains(out, version) {
		t.Errorf("the label says version %s, the program %v\n%s", version, err, out)
	}
	if out, err := c.exec(i.command[0], "man", "/etc/manual"); !strings.Contains(out, "read-only file system") {
		t.Errorf("a program of the image writes to /etc: %v\n%s", err, out)
	}
	fatal.If(t, c.process.Process.Signal(syscall.SIGTERM))
	select {
	case err := <-c.ended:
		if err != nil {
			t.Errorf("after SIGTERM: %v\n%s", err, read(t, c.log))
		}
		c.ended <- nil
	case <-time.After(30 * time.Second):
		t.Errorf("SIGTERM does not end it:\n%s", read(t, c.log))
	}
}

// wantStatic fails if a program needs a dynamic linker, which the image does not have.
func wantStatic(t *testing.T, path string) {
	t.Helper()
	program := fatal.Value(elf.Open(path))(t)
	defer program.Close()
	for _, p := range program.Progs {
		if p.Type == elf.PT_INTERP {
			t.Errorf("%s needs a dynamic linker", path)
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text := fatal.Value(fs.ReadFile(os.DirFS("/"), strings.TrimPrefix(path, "/")))(t)
	return string(text)
}
