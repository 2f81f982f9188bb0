package measure

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/stocached/stocached/bench/report"
	"github.com/stocached/stocached/client"

	"golang.org/x/sys/unix"
)

// Stores measures Set with its checksum against a bare pwrite of the same bytes at the same offsets
// of a tmpfs file of the same size. Every run has a new cache and a new file, because pages are
// new, or reserved and unwritten, only once.
func Stores(z Size, dir string, runs int, emit func(report.Measurement)) error {
	data := z.data()
	for _, reserve := range []bool{false, true} {
		name := map[bool]string{false: "go/set-new", true: "go/set-reserved"}[reserve]
		var c *client.Cache
		var remove func() error
		ours := Subject{Name: "Set", Samples: z.Sets,
			Setup: func() (err error) {
				o := z.options(dir)
				o.Reserve = reserve
				o.Slots = z.Sets
				c, remove, err = fresh(dir, "store", o)
				return err
			},
			Run: func() error {
				for k := range z.Sets {
					if r, err := c.Set(k, data[k%len(data)], 0); r != client.Stored || err != nil {
						return fmt.Errorf("sample %d: %v %w", k, r, err)
					}
				}
				return nil
			},
			Clean: func() error { return remove() },
		}
		var f *os.File
		bare := Subject{Name: "pwrite", Samples: z.Sets,
			Setup: func() (err error) {
				if f, err = bareFile(dir, int64(z.Sets)*int64(z.Bytes), reserve); err != nil {
					return err
				}
				return nil
			},
			Run: func() error {
				fd := int(f.Fd())
				for k := range z.Sets {
					if n, err := unix.Pwrite(fd, data[k%len(data)], int64(k)*int64(z.Bytes)); n != z.Bytes ||
						err != nil {
						return fmt.Errorf("pwrite of %d bytes: %d, %w", z.Bytes, n, err)
					}
				}
				return nil
			},
			Clean: func() error { return f.Close() },
		}
		m, err := Alternate(name, z.Name, runs, ours, bare)
		if err != nil {
			return err
		}
		emit(m)
	}
	return nil
}

// bareFile makes a file that is removed when it is closed.
func bareFile(dir string, size int64, reserve bool) (*os.File, error) {
	path := filepath.Join(dir, "bare")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil {
		return nil, err
	}
	if err := f.Truncate(size); err != nil {
		return nil, err
	}
	for at := int64(0); reserve && at < size; at += 64 << 20 { // in steps, as a cache does
		for {
			if err := unix.Fallocate(int(f.Fd()), 0, at, min(64<<20, size-at)); err == nil {
				break
			} else if err != unix.EINTR {
				return nil, err
			}
		}
	}
	return f, nil
}
