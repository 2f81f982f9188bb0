package measure

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// peer is another way to share samples between processes of a machine.
type peer struct {
	name    string
	address string     // argument of its readers: see reader.go
	kind    string     // of its readers
	pid     func() int // of its server; nil: it has none
	memory  func() (int64, error)
	end     func() error
}

// otherwise returns the same peer with readers of another kind. It owns nothing.
func (p *peer) otherwise(kind string) *peer {
	return &peer{name: kind, kind: kind, address: p.address, pid: p.pid, end: func() error { return nil }}
}

// redis starts redis-server on its own socket, without files, and fills it. Its readers request a
// whole batch at once.
func (b *Box) redis(r Records) (*peer, error) {
	socket := filepath.Join(b.Dir, "redis.sock")
	return b.daemon("redis", "redis-server", socket, r,
		[]string{"--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no", "--daemonize", "no",
			"--dir", b.Dir},
		func(w *bufio.ReadWriter, i int, sample []byte) error {
			key := strconv.Itoa(i)
			fmt.Fprintf(w, "*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n", len(key), key, len(sample), sample)
			return answered(w, "+OK\r\n")
		})
}

// memcached starts memcached on its own socket, with enough memory, and fills it.
func (b *Box) memcached(r Records) (*peer, error) {
	socket := filepath.Join(b.Dir, "memcached.sock")
	// -M: an error when it is full, no eviction
	arguments := []string{"-s", socket, "-m", strconv.Itoa(r.Samples*r.Bytes>>20*3/2 + 128), "-M"}
	if os.Getuid() == 0 {
		arguments = append(arguments, "-u", "root")
	}
	return b.daemon("memcached", "memcached", socket, r, arguments,
		func(w *bufio.ReadWriter, i int, sample []byte) error {
			fmt.Fprintf(w, "set %d 0 0 %d\r\n%s\r\n", i, len(sample), sample)
			return answered(w, "STORED\r\n")
		})
}

// answered sends the request, and reads the expected line.
func answered(w *bufio.ReadWriter, want string) error {
	if err := w.Flush(); err != nil {
		return err
	}
	if line, err := w.ReadString('\n'); err != nil || line != want {
		return fmt.Errorf("answer %q, want %q: %w", line, want, err)
	}
	return nil
}

func (b *Box) daemon(name, program, socket string, r Records, arguments []string,
	store func(w *bufio.ReadWriter, i int, sample []byte) error) (*peer, error) {
	if _, err := exec.LookPath(program); err != nil {
		return nil, fmt.Errorf("%w; on Debian and Ubuntu: sudo apt-get install -y redis-server memcached", err)
	}
	command := exec.Command(program, arguments...)
	var said strings.Builder
	command.Stdout, command.Stderr = &said, &said
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		return nil, err
	}
	p := &peer{name: name, address: socket, kind: name, pid: func() int { return command.Process.Pid }}
	p.memory = func() (int64, error) { return anonymous(p.pid()) }
	p.end = func() error {
		command.Process.Signal(syscall.SIGTERM) //nolint:errcheck // it ends by itself otherwise, and then Wait says so
		command.Wait()                          //nolint:errcheck // redis says 0, memcached that it was a signal
		if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	}
	c, err := dialSoon(socket)
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", program, errors.Join(err, p.end()), &said)
	}
	defer c.Close()
	w := bufio.NewReadWriter(bufio.NewReader(c), bufio.NewWriter(c))
	if err := r.samples(func(i int, sample []byte) error { return store(w, i, sample) }); err != nil {
		return nil, fmt.Errorf("filling %s: %w", program, errors.Join(err, p.end()))
	}
	return p, nil
}

// dialSoon connects to a socket that will exist soon.
func dialSoon(socket string) (c net.Conn, err error) {
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if c, err = net.Dial("unix", socket); err == nil {
			return c, nil
		}
	}
	return nil, err
}

// files returns the samples as files of a folder on the tmpfs.
func (b *Box) files(r Records) (*peer, error) {
	dir := filepath.Join(b.Dir, "plain-files")
	p := &peer{name: "plain files", address: dir, kind: "files", end: func() error { return os.RemoveAll(dir) }}
	p.memory = func() (sum int64, err error) {
		for i := range r.Samples {
			n, err := allocated(fileOf(dir, i))
			if err != nil {
				return 0, err
			}
			sum += n
		}
		return sum, nil
	}
	return p, r.samples(func(i int, sample []byte) error {
		if i%filesPerFolder == 0 {
			if err := os.MkdirAll(filepath.Dir(fileOf(dir, i)), 0o755); err != nil {
				return err
			}
		}
		return os.WriteFile(fileOf(dir, i), sample, 0o600)
	})
}

// anonymous returns the memory of a process without mapped files, in bytes.
func anonymous(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		var kb int64
		if n, _ := fmt.Sscanf(line, "RssAnon: %d kB", &kb); n == 1 {
			return kb << 10, nil
		}
	}
	return 0, fmt.Errorf("process %d: its status has no RssAnon", pid)
}

// askRedisOne reads samples into rows by one GET each. It waits for each answer before the next
// GET.
func askRedisOne(c *bufio.ReadWriter, indices []int, rows []byte, bytes int) error {
	head := fmt.Sprintf("$%d\r\n", bytes)
	for k, i := range indices {
		key := strconv.Itoa(i)
		fmt.Fprintf(c, "*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n", len(key), key)
		if err := c.Flush(); err != nil {
			return err
		}
		if err := takeRow(c, head, rows[k*bytes:][:bytes]); err != nil {
			return err
		}
	}
	return nil
}

// askRedis reads samples into rows by MGETs of several keys. It sends all of them before it reads
// the first answer.
func askRedis(c *bufio.ReadWriter, indices []int, rows []byte, bytes int) error {
	for part := range pieces(indices, 16) {
		fmt.Fprintf(c, "*%d\r\n$4\r\nMGET\r\n", len(part)+1)
		for _, i := range part {
			key := strconv.Itoa(i)
			fmt.Fprintf(c, "$%d\r\n%s\r\n", len(key), key)
		}
	}
	if err := c.Flush(); err != nil {
		return err
	}
	head := fmt.Sprintf("$%d\r\n", bytes)
	for part := range pieces(indices, 16) {
		if err := expect(c, fmt.Sprintf("*%d\r\n", len(part))); err != nil {
			return err
		}
		for range part {
			if err := takeRow(c, head, rows[:bytes]); err != nil {
				return err
			}
			rows = rows[bytes:]
		}
	}
	return nil
}

// askMemcached reads samples into rows by gets of several keys. It sends all of them before it
// reads the first answer.
func askMemcached(c *bufio.ReadWriter, indices []int, rows []byte, bytes int) error {
	for part := range pieces(indices, 64) {
		fmt.Fprint(c, "get")
		for _, i := range part {
			fmt.Fprintf(c, " %d", i)
		}
		fmt.Fprint(c, "\r\n")
	}
	if err := c.Flush(); err != nil {
		return err
	}
	for part := range pieces(indices, 64) {
		for _, i := range part {
			if err := takeRow(c, fmt.Sprintf("VALUE %d 0 %d\r\n", i, bytes), rows[:bytes]); err != nil {
				return err
			}
			rows = rows[bytes:]
		}
		if err := expect(c, "END\r\n"); err != nil {
			return err
		}
	}
	return nil
}

// takeRow reads a value between its head line and the end of its line.
func takeRow(c *bufio.ReadWriter, head string, row []byte) error {
	if err := expect(c, head); err != nil {
		return err
	}
	if _, err := io.ReadFull(c, row); err != nil {
		return err
	}
	return expect(c, "\r\n")
}

func expect(c *bufio.ReadWriter, want string) error {
	line, err := c.ReadSlice('\n')
	if err == nil && string(line) != want {
		err = fmt.Errorf("answer %q, want %q", line, want)
	}
	return err
}

// pieces splits a list into parts of n, the last one shorter.
func pieces(indices []int, n int) func(func([]int) bool) {
	return func(yield func([]int) bool) {
		for ; len(indices) > 0; indices = indices[min(n, len(indices)):] {
			if !yield(indices[:min(n, len(indices))]) {
				return
			}
		}
	}
}
