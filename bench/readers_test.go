package bench

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/client"
	"github.com/stocached/stocached/internal/verify/fatal"
)

const readBatch = 64 // samples that a reader reads at a time

// reader reads a batch of samples, one after the other, into rows.
type reader func(indices []int, rows []byte) error

// Goroutines, as many as processors, read samples that all of them share: from our cache, from files on
// the tmpfs, and from Redis and memcached, each over a connection of its own.
func BenchmarkReaders(b *testing.B) {
	ways := []struct {
		name  string
		start func(b *testing.B) func() (reader, error)
	}{{"stocached", ours}, {"views", views}, {"files", files}, {"redis", withRedis}, {"memcached", withMemcached}}
	for _, way := range ways {
		b.Run("way="+way.name, func(b *testing.B) {
			open := way.start(b)
			b.SetBytes(readBatch * sampleBytes)
			b.ResetTimer()
			b.RunParallel(func(p *testing.PB) {
				read, err := open()
				if err != nil {
					b.Error(err)
					return
				}
				order, rows := rand.Perm(samples), make([]byte, readBatch*sampleBytes)
				for k := 0; p.Next(); k++ {
					if err := read(order[k%(samples/readBatch)*readBatch:][:readBatch], rows); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}

func full(b *testing.B) *client.Served {
	c := dial(b, raw(b))
	fatal.If(b, c.Fill(b.Context(), rand.Perm(samples)))
	return c
}

func ours(b *testing.B) func() (reader, error) {
	c := full(b)
	return func() (reader, error) {
		return func(indices []int, rows []byte) error { return c.Fetch(b.Context(), indices, rows, sampleBytes) }, nil
	}
}

// views reads in place: a byte of each cache line.
func views(b *testing.B) func() (reader, error) {
	c := full(b)
	return func() (reader, error) {
		return func(indices []int, rows []byte) error {
			for k, i := range indices {
				view, hit, err := c.View(i)
				if !hit || err != nil {
					return errors.Join(fmt.Errorf("sample %d is not there", i), err)
				}
				for at := 0; at < len(view); at += 64 {
					rows[k] += view[at]
				}
			}
			return nil
		}, nil
	}
}

func files(b *testing.B) func() (reader, error) {
	dir := onTmpfs(b)
	if err := each(samples, sampleBytes, func(i int, sample []byte) error {
		return os.WriteFile(fileOf(dir, i), sample, 0o600)
	}); err != nil {
		b.Fatal(err)
	}
	return func() (reader, error) {
		return func(indices []int, rows []byte) error {
			for k, i := range indices {
				if err := readFile(fileOf(dir, i), rows[k*sampleBytes:][:sampleBytes]); err != nil {
					return err
				}
			}
			return nil
		}, nil
	}
}

// readFile opens, reads and closes a file.
func readFile(path string, dst []byte) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	n, err := unix.Pread(fd, dst, 0)
	if err == nil && n != len(dst) {
		err = fmt.Errorf("pread: %d bytes", n)
	}
	return errors.Join(err, unix.Close(fd))
}

// withRedis asks for 16 samples by one MGET, and sends all of them before it reads an answer.
func withRedis(b *testing.B) func() (reader, error) {
	socket := filepath.Join(onTmpfs(b), "redis")
	start(b, "redis-server", socket, "--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no")
	store(b, socket, "+OK\r\n", func(i int) string {
		key := strconv.Itoa(i)
		return fmt.Sprintf("*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n", len(key), key, sampleBytes)
	})
	const many = 16
	return func() (reader, error) {
		return over(socket, func(c *bufio.ReadWriter, indices []int) {
			for k, i := range indices {
				if k%many == 0 {
					fmt.Fprintf(c, "*%d\r\n$4\r\nMGET\r\n", many+1)
				}
				key := strconv.Itoa(i)
				fmt.Fprintf(c, "$%d\r\n%s\r\n", len(key), key)
			}
		}, func(c *bufio.ReadWriter, k, _ int) error {
			var err error
			if k%many == 0 {
				err = expect(c, fmt.Sprintf("*%d\r\n", many))
			}
			return errors.Join(err, expect(c, fmt.Sprintf("$%d\r\n", sampleBytes)))
		}, "")
	}
}

// withMemcached asks for a whole batch by one command.
func withMemcached(b *testing.B) func() (reader, error) {
	socket := filepath.Join(onTmpfs(b), "memcached")
	start(b, "memcached", socket, "-s", socket, "-m", "1024", "-u", "root")
	store(b, socket, "STORED\r\n", func(i int) string { return fmt.Sprintf("set %d 0 0 %d\r\n", i, sampleBytes) })
	return func() (reader, error) {
		return over(socket, func(c *bufio.ReadWriter, indices []int) {
			fmt.Fprint(c, "get")
			for _, i := range indices {
				fmt.Fprintf(c, " %d", i)
			}
			fmt.Fprint(c, "\r\n")
		}, func(c *bufio.ReadWriter, _, i int) error {
			return expect(c, fmt.Sprintf("VALUE %d 0 %d\r\n", i, sampleBytes))
		}, "END\r\n")
	}
}

// start starts a program that listens at a socket, for the time of the benchmark.
func start(b *testing.B, program, socket string, arguments ...string) {
	b.Helper()
	if _, err := exec.LookPath(program); err != nil {
		b.Skipf("%v; on Debian and Ubuntu: sudo apt-get install -y redis-server memcached", err)
	}
	c := exec.Command(program, arguments...)
	var said strings.Builder
	c.Stdout, c.Stderr = &said, &said
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	fatal.If(b, c.Start())
	b.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if conn, err := net.Dial("unix", socket); err == nil {
			conn.Close()
			return
		} else if time.Now().After(end) {
			b.Fatalf("%s: %v\n%s", program, err, &said)
		}
	}
}

// store fills a program with the samples. head is what comes before the bytes of one.
func store(b *testing.B, socket, answer string, head func(i int) string) {
	b.Helper()
	c, err := connect(socket)
	if err == nil {
		err = each(samples, sampleBytes, func(i int, sample []byte) error {
			fmt.Fprint(c, head(i))
			c.Write(sample) //nolint:errcheck // Flush says it
			fmt.Fprint(c, "\r\n")
			return errors.Join(c.Flush(), expect(c, answer))
		})
	}
	if err != nil {
		b.Fatal(err)
	}
}

// over returns a reader over a connection: ask sends the request for a batch, begin reads what comes before
// sample k of it, and end comes after them.
func over(socket string, ask func(*bufio.ReadWriter, []int), begin func(c *bufio.ReadWriter, k, i int) error,
	end string) (reader, error) {
	c, err := connect(socket)
	return func(indices []int, rows []byte) error {
		ask(c, indices)
		err := c.Flush()
		for k, i := range indices {
			if err == nil {
				err = begin(c, k, i)
			}
			if err == nil {
				_, err = io.ReadFull(c, rows[k*sampleBytes:][:sampleBytes])
			}
			if err == nil {
				err = expect(c, "\r\n")
			}
		}
		if err == nil && end != "" {
			err = expect(c, end)
		}
		return err
	}, err
}

func connect(socket string) (*bufio.ReadWriter, error) {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return nil, err
	}
	return bufio.NewReadWriter(bufio.NewReaderSize(c, 64<<10), bufio.NewWriterSize(c, 64<<10)), nil
}

func expect(c *bufio.ReadWriter, want string) error {
	line, err := c.ReadSlice('\n')
	if err == nil && string(line) != want {
		err = fmt.Errorf("answer %q, want %q", line, want)
	}
	return err
}
