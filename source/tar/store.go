package tar

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/stocached/stocached/internal/fault"
	"github.com/stocached/stocached/source"

	"golang.org/x/sys/unix"
)

const (
	indexSuffix = ".stocached-index"
	newSuffix   = ".new" // ending of an unfinished index
	noIndex     = "none" // a value of the setting index
	// besideShards is another one.
	besideShards = "beside"
	chunk        = 64 << 10 // bytes of one write
	indexMode    = fs.FileMode(0o644)
)

var errBusy = errors.New("another process is writing it")

// places returns where on local disks the index of a shard may be kept, the preferred place first: beside
// a local shard and in the user's cache directory, or the place of the setting.
func places(setting, shard string) ([]string, error) {
	absolute, remote := shard, source.IsRemote(shard)
	if !remote {
		var err error
		if absolute, err = filepath.Abs(shard); err != nil {
			return nil, err
		}
	}
	digest := sha256.Sum256([]byte(absolute))
	// shards of several folders may share a folder
	distinct := filepath.Base(shard) + "-" + hex.EncodeToString(digest[:8]) + indexSuffix
	switch {
	case setting == noIndex:
		return nil, nil
	case setting == besideShards && !remote:
		return []string{shard + indexSuffix}, nil
	case strings.HasSuffix(setting, indexSuffix):
		return []string{setting}, nil
	case setting != "" && setting != besideShards:
		return []string{filepath.Join(setting, distinct)}, nil
	}
	var beside []string
	if !remote {
		beside = append(beside, shard+indexSuffix)
	}
	if user, err := os.UserCacheDir(); err == nil {
		beside = append(beside, filepath.Join(user, "stocached", "tar", distinct))
	}
	return beside, nil
}

// load returns the index of a shard in a file. Errors: fs.ErrNotExist, errStale, ErrCorrupt, errors of the
// system.
func load(path, shard string, stamp source.Stamp) (x *index, in *kept, err error) {
	if in, err = openKept(path, shard); err != nil {
		return nil, nil, err
	}
	err = in.look(func() (err error) { x, err = decodeIndex(in.bytes, stamp); return err })
	if err != nil {
		in.close()
		return nil, nil, err
	}
	return x, in, nil
}

// save writes an index. At any moment, also after a kill, path has a complete index or none. save
// writes a new file and renames it to path. It locks that file, so that one process writes at a
// time; the next writer uses the file of a dead one. Errors: errBusy, errors of the system.
func save(path string, data []byte) (err error) {
	f, err := openNew(path + newSuffix)
	if err != nil {
		return err
	}
	defer f.Close() // this releases the lock
	fault.At("index.locked")
	if err := f.Truncate(0); err != nil {
		return err
	}
	for at := 0; at < len(data); at += chunk {
		if _, err := f.Write(data[at:min(at+chunk, len(data))]); err != nil {
			return errors.Join(err, os.Remove(f.Name())) // gives the space on a full disk back
		}
		fault.At("index.part")
	}
	if err := f.Sync(); err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	fault.At("index.synced")
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	fault.At("index.renamed")
	return nil
}

// openNew opens and locks the new file of an index. It returns errBusy while another process has
// it.
func openNew(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, indexMode)
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return nil, err
		}
		f, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, indexMode)
	}
	if err != nil {
		return nil, err
	}
	fault.At("index.opened")
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if err == unix.EWOULDBLOCK {
			return nil, fmt.Errorf("%s: %w", path, errBusy)
		}
		return nil, &os.PathError{Op: "lock", Path: path, Err: err}
	}
	// The last holder of the lock may have renamed the file. Then it is a finished index, which we
	// must not change.
	ours, err := f.Stat()
	named, errNamed := os.Lstat(path)
	if err != nil || errNamed != nil || !os.SameFile(ours, named) || !ours.Mode().IsRegular() {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, errBusy)
	}
	return f, nil
}
