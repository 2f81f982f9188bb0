package check

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"

	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/server"
	"github.com/stocached/stocached/server/config"
	"github.com/stocached/stocached/source"
)

// compose loads a Compose file like Docker, with its schema.
func compose(t *testing.T, file string) *types.Project {
	t.Helper()
	path := fatal.Value(filepath.Abs(file))(t)
	p, err := loader.LoadWithContext(context.Background(), types.ConfigDetails{WorkingDir: filepath.Dir(path),
		ConfigFiles: []types.ConfigFile{{Filename: path}}, Environment: types.Mapping{}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Ensure that the containers share the server's memory, that it has room for the caches, and that
// they run as the image says.
func TestCompose(t *testing.T) {
	p, i := compose(t, "../compose.yaml"), readImage(t)
	s, job, engine := p.Services["stocached"], p.Services["client"], p.Services["redis"]
	if s.Ipc != "shareable" || job.Ipc != "service:stocached" || s.User+job.User != "" || s.Image != job.Image {
		t.Errorf("ipc %q and %q, users %q and %q, images %q and %q", s.Ipc, job.Ipc, s.User, job.User, s.Image, job.Image)
	}
	if !s.ReadOnly || !slices.Equal(s.CapDrop, []string{"ALL"}) || s.Build.Dockerfile != "deploy/image/Containerfile" {
		t.Errorf("%+v", s)
	}
	if _, err := os.Stat(filepath.Join(s.Build.Context, s.Build.Dockerfile)); err != nil {
		t.Error(err)
	}
	text := fatal.Value(os.ReadFile("../compose.yaml"))(t)
	for _, said := range []string{`user: "` + i.user + `"`, "STOCACHED_SOCKETS_DIR: " + i.environ["STOCACHED_SOCKETS_DIR"]} {
		if !bytes.Contains(text, []byte(said)) {
			t.Errorf("the image has %s, and the text says another", said)
		}
	}
	c := composeConfig(t, p)
	caches := uint64(0)
	for _, one := range c.Caches {
		caches += uint64(one.Size)
	}
	if shm, memory := uint64(s.ShmSize), uint64(s.MemLimit); shm*9/10 < caches ||
		memory-memory/16 < caches+uint64(c.Limits.Clients)+64<<20+256<<20 {
		t.Errorf("shm_size %d, mem_limit %d, caches %d", shm, memory, caches)
	}
	address := c.Caches[0].Tiers[0]["addresses"].([]any)[0].(string)
	if name, _, _ := strings.Cut(address, ":"); name != engine.Name {
		t.Errorf("the tier is %s, and the engine %s", address, engine.Name)
	}
	tiers := fatal.Value(os.ReadFile(top + "/docs/spec/tiers.md"))(t)
	for k, word := range engine.Command {
		if setting, is := strings.CutPrefix(word, "--"); is && !strings.Contains(string(tiers), "\n"+setting+" ") {
			t.Errorf("docs/spec/tiers.md does not set %s %s", setting, engine.Command[k+1])
		}
	}
}

// Ensure that the job of the example shares the server's memory, which has room for the cache, and that
// the server reads from the storage of the example. `make test-examples` runs what the containers run.
func TestComposeExample(t *testing.T) {
	const file = "../../examples/served/compose.yaml"
	p, i := compose(t, file), readImage(t)
	s, job, storage := p.Services["stocached"], p.Services["train"], p.Services["storage"]
	if s.Ipc != "shareable" || job.Ipc != "service:stocached" || job.User != i.user ||
		*job.Environment["STOCACHED_SOCKETS_DIR"] != i.environ["STOCACHED_SOCKETS_DIR"] {
		t.Errorf("%+v, %+v", s, job)
	}
	for _, name := range []string{filepath.Join(s.Build.Context, s.Build.Dockerfile), filepath.Join(job.Build.Context, "python"),
		job.Volumes[0].Source} {
		if _, err := os.Stat(name); err != nil {
			t.Error(err)
		}
	}
	if *s.Environment["AWS_ACCESS_KEY_ID"] != *storage.Environment["ROOT_ACCESS_KEY"] ||
		*s.Environment["AWS_SECRET_ACCESS_KEY"] != *storage.Environment["ROOT_SECRET_KEY"] {
		t.Error("the server and the storage have other keys")
	}
	cache := composeConfig(t, p).Caches[0]
	remote := cache.Source["remote"].(map[string]any)["endpoint"].(string)
	if address := storage.Name + storage.Command[1]; remote != "http://"+address || cache.Source["path"] != "s3://"+cache.Name {
		t.Errorf("the source %v, and the storage at %s", cache.Source, address)
	}
	if job.Command[2] != cache.Name || storage.Volumes[0].Target != storage.Command[len(storage.Command)-1]+"/"+cache.Name {
		t.Errorf("the job reads %s, the storage has %v", job.Command[2], storage.Volumes)
	}
	if uint64(s.ShmSize)*9/10 < uint64(cache.Size) {
		t.Errorf("shm_size %d, size %d", s.ShmSize, cache.Size)
	}
}

// composeConfig reads the server's configuration, which the server must accept with data in place of the sources.
func composeConfig(t *testing.T, p *types.Project) *config.Config {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	text := p.Configs["server"].Content
	for _, v := range p.Services["stocached"].Volumes {
		if v.Target == "/etc/stocached/config.yaml" {
			text = read(t, v.Source)
		}
	}
	fatal.If(t, os.WriteFile(path, []byte(text), 0o600))
	c := fatal.Value(config.Load(path))(t)
	o := c.Options(slog.New(slog.DiscardHandler))
	for k := range o.Caches {
		o.Caches[k].Dir, o.Caches[k].Decode, o.Caches[k].Source = shared(t), nil, source.Settings{"kind": "none", "samples": 10, "fingerprint": "a",
			"fields": []any{map[string]any{"name": "data", "shape": []any{8}}}}
	}
	if _, err := server.Check(t.Context(), o); err != nil {
		t.Error(err)
	}
	return c
}

// shared returns a folder in shared memory.
func shared(t *testing.T) string {
	t.Helper()
	dir := fatal.Value(os.MkdirTemp("/dev/shm", "test-stocached-deploy-"))(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}
