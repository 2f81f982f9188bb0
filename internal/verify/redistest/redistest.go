// Package redistest starts redis-server processes for tests, on free ports of the loopback. STOCACHED_REDIS_SERVER
// names another program, such as valkey-server.
package redistest

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stocached/stocached/internal/verify/fatal"
)

// install is what puts redis-server on a machine.
const install = "apt-get install -y --no-install-recommends redis-server"

// Program is what runs.
func Program() string { return cmp.Or(os.Getenv("STOCACHED_REDIS_SERVER"), "redis-server") }

var installed = sync.OnceValue(func() error {
	_, err := exec.LookPath(Program())
	if err == nil {
		return nil
	}
	if Program() != "redis-server" {
		return fmt.Errorf("STOCACHED_REDIS_SERVER: %w", err)
	}
	if os.Getuid() != 0 {
		return fmt.Errorf("there is no redis-server; as root, run: %s", install)
	}
	words := strings.Fields(install)
	if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", install, err, out)
	}
	return nil
})

// Server is a redis-server. It is killed when the test ends.
type Server struct {
	Addr string
	t    testing.TB
	dir  string
	args []string
	cmd  *exec.Cmd
}

// Start starts a server with further arguments, such as "--maxmemory", "4mb".
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	s := &Server{Addr: "127.0.0.1:" + freePort(t), t: t, dir: t.TempDir(), args: args}
	s.Begin()
	t.Cleanup(s.Kill)
	return s
}

func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// Begin starts the server again, on its port, with what it has saved.
func (s *Server) Begin() {
	s.t.Helper()
	fatal.If(s.t, installed())
	_, port, _ := net.SplitHostPort(s.Addr)
	listen := []string{"--port", port}
	for _, a := range s.args {
		if a == "--tls-cert-file" {
			listen = []string{"--port", "0", "--tls-port", port}
		}
	}
	args := append([]string{"--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", s.dir,
		"--maxmemory-policy", "noeviction"}, append(listen, s.args...)...)
	s.cmd = exec.Command(Program(), args...)
	var out bytes.Buffer
	s.cmd.Stdout, s.cmd.Stderr = &out, &out
	fatal.If(s.t, s.cmd.Start())
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		c, err := net.Dial("tcp", s.Addr)
		if err == nil {
			_ = c.Close()
			return
		}
		if time.Now().After(deadline) {
			s.Kill()
			s.t.Fatalf("%s %v: %v\n%s", Program(), args, err, out.String())
		}
	}
}

// Kill ends the server with SIGKILL. Its memory is lost.
func (s *Server) Kill() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	s.cmd = nil
}

// Stop stops the server until Continue: it takes connections, and answers nothing.
func (s *Server) Stop() { s.signal(syscall.SIGSTOP) }

// Continue ends Stop.
func (s *Server) Continue() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(what syscall.Signal) {
	s.t.Helper()
	fatal.If(s.t, s.cmd.Process.Signal(what))
}

// Client returns a client of the server, without a password and TLS.
func (s *Server) Client() *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: s.Addr, Protocol: 2, DisableIdentity: true})
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// Cluster starts a cluster of n servers that answer also when some of them are dead.
func Cluster(t testing.TB, n int, args ...string) []*Server {
	t.Helper()
	var all []*Server
	for range n {
		all = append(all, Start(t, append(clustered(t), args...)...))
	}
	Form(t, all, 0)
	return all
}

// clustered are the arguments of a server that may be in a cluster.
func clustered(t testing.TB) []string {
	return []string{"--cluster-enabled", "yes", "--cluster-require-full-coverage", "no", "--cluster-node-timeout", "1000",
		"--cluster-port", freePort(t)}
}

// Form makes servers a cluster. The slots of the first of n parts belong to server first.
func Form(t testing.TB, all []*Server, first int) {
	t.Helper()
	ctx := context.Background()
	must := func(err error) {
		t.Helper()
		fatal.If(t, err)
	}
	const slots = 16384
	for k := range all {
		c := all[(k+first)%len(all)].Client()
		must(c.ClusterAddSlotsRange(ctx, k*slots/len(all), (k+1)*slots/len(all)-1).Err())
		must(c.Do(ctx, "cluster", "set-config-epoch", k+1).Err())
	}
	for _, s := range all[1:] {
		host, port, _ := net.SplitHostPort(s.Addr)
		bus := s.args[slices.Index(s.args, "--cluster-port")+1]
		must(all[0].Client().Do(ctx, "cluster", "meet", host, port, bus).Err())
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		ready := 0
		for _, s := range all {
			c := s.Client()
			info, err := c.ClusterInfo(ctx).Result()
			must(err)
			parts, err := c.ClusterSlots(ctx).Result() //nolint:staticcheck // as the tier does
			must(err)
			if strings.Contains(info, "cluster_state:ok") && len(parts) == len(all) {
				ready++
			}
			_ = c.Close()
		}
		if ready == len(all) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the cluster does not form")
		}
	}
}

// Become starts a killed server again, alone or as one that Form takes into a cluster.
func (s *Server) Become(inCluster bool) {
	s.t.Helper()
	if s.args = nil; inCluster {
		s.args = clustered(s.t)
	}
	s.Begin()
}
