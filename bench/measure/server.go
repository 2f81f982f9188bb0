package measure

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/stocached/stocached/client"
	"github.com/stocached/stocached/source"
)

// Box is where the cases of the server run. It has the program, a folder on the tmpfs for caches
// and sockets, and a folder on a disk for the files of sources.
type Box struct {
	Program string // stocached
	Dir     string // on the tmpfs
	Data    *Data
}

// parallel is the number of samples that a server reads at a time, its default. The bare reads
// beside it use as many goroutines.
const parallel = 4

// socketsSuffix follows the name of a server in the name of its sockets' folder.
const socketsSuffix = ".sockets"

// served is a cache of a server, as in the configuration.
type served struct {
	Name     string          `json:"name"`
	Source   source.Settings `json:"source"`
	Decode   map[string]any  `json:"decode,omitempty"`
	Size     any             `json:"size"`
	Parallel int             `json:"parallel,omitempty"`
	Dir      string          `json:"dir"`
}

// server is a process of `stocached serve` with its own configuration.
type server struct {
	command *exec.Cmd
	said    strings.Builder // its log
	box     *Box
	sockets string
	caches  []string
	started time.Duration // from the start of the process until it serves
}

// cache returns a cache that can hold every sample of a source.
func (b *Box) cache(name string, s source.Settings) served {
	return served{Name: name, Source: s, Size: "all", Parallel: parallel, Dir: b.Dir}
}

// serve starts a server and waits until it serves clients.
func (b *Box) serve(name string, caches ...served) (*server, error) {
	s := &server{box: b, sockets: filepath.Join(b.Dir, name+socketsSuffix)}
	for _, c := range caches {
		s.caches = append(s.caches, c.Name)
	}
	// JSON is valid YAML
	configuration, err := json.Marshal(map[string]any{"caches": caches,
		"sockets": map[string]string{"dir": s.sockets}, "log": map[string]string{"level": "warn"}})
	if err != nil {
		return nil, err
	}
	path := filepath.Join(b.Dir, name+".yaml")
	if err := os.WriteFile(path, configuration, 0o600); err != nil {
		return nil, err
	}
	defer os.Remove(path)
	s.command = exec.Command(b.Program, "serve", "-c", path)
	s.command.Stderr = &s.said
	s.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := s.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if err := s.command.Start(); err != nil {
		return nil, err
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || !strings.HasPrefix(line, "serving ") {
		return nil, fmt.Errorf("stocached serve said %q: %w\n%s", line, errors.Join(err, s.command.Wait()), &s.said)
	}
	s.started = time.Since(began)
	return s, nil
}

func (s *server) pid() int { return s.command.Process.Pid }

// dial attaches to one of the server's caches.
func (s *server) dial(cache string) (*client.Served, error) {
	return client.Dial(context.Background(), cache,
		client.DialOptions{SocketsDir: s.sockets, Timeout: 10 * time.Second})
}

// path returns the path of a cache's segment.
func (s *server) path(cache string) string { return filepath.Join(s.box.Dir, cache) }

// stop ends the server as an operator does. The caches stay.
func (s *server) stop() error {
	if err := s.command.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	if err := s.command.Wait(); err != nil {
		return fmt.Errorf("stocached serve: %w\n%s", err, &s.said)
	}
	return os.RemoveAll(s.sockets)
}

// end ends the server and removes its caches.
func (s *server) end() error {
	err := s.stop()
	for _, c := range s.caches {
		err = errors.Join(err, client.Remove(s.path(c)))
	}
	return err
}

// emptied clears a cache; its pages stay. A clear waits for claims, but no client claims now.
func emptied(c *client.Served) error {
	r, err := c.Clear(context.Background())
	if err == nil && r != client.Stored {
		err = fmt.Errorf("clear: %v", r)
	}
	return err
}
