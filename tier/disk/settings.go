package disk

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/internal/size"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/shm/diskfile"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/tier"
)

// settings are the keys of the tier; docs/spec/tiers.md describes them.
type settings struct {
	Dir    string     `key:"dir"`
	Size   size.Bytes `key:"size"`
	Policy string     `key:"policy"`

	policy shm.Policy
}

var defaults = source.Settings{"policy": shm.PolicyFirstCome.String()}

// read reads and checks settings. Errors: source.ErrInvalid.
func read(from source.Settings, about tier.About) (*settings, error) {
	s := new(settings)
	if err := from.Or(defaults).Decode(s); err != nil {
		return nil, err
	}
	var wrong []string
	complain := func(format string, a ...any) { wrong = append(wrong, fmt.Sprintf(format, a...)) }
	if s.Dir == "" {
		complain("dir: give a folder on a local disk")
	} else if err := diskfile.CheckLocal(s.Dir); err != nil {
		complain("dir: %v", err)
	}
	if s.Size == 0 {
		complain("size: give the most that the file may take, such as 200GiB")
	}
	var err error
	switch s.policy, err = shm.ParsePolicy(s.Policy); {
	case err != nil:
		complain("policy: %q is not one of %s", s.Policy, strings.Join(policies(), ", "))
	case s.policy == shm.PolicyCost || s.policy == shm.PolicyPlanned || s.policy == shm.PolicyFirstIndices:
		complain("policy: a tier knows neither costs nor plans, so %s is not for it; take one of %s", s.Policy,
			strings.Join(policies(), ", "))
	case s.policy.Evicts() && about.Info.Schema.Variable:
		complain("policy: on a disk, samples that differ in size need %s", shm.PolicyFirstCome)
	}
	if most := about.Info.Schema.SampleBytes; most > 0 && s.Size > 0 && uint64(s.Size) < most {
		complain("size: %d bytes are less than a sample, which takes %d", s.Size, most)
	}
	if len(wrong) == 0 && about.Info.Samples > 0 { // the tables of the file need space too
		if _, err := diskfile.Bytes(s.options(about)); err != nil {
			complain("size: %v", err)
		}
	}
	if len(wrong) > 0 {
		return nil, fmt.Errorf("%w: %s", source.ErrInvalid, strings.Join(wrong, "; "))
	}
	return s, nil
}

// policies returns the names of those that a tier may have.
func policies() (names []string) {
	for _, p := range []shm.Policy{shm.PolicyFirstCome, shm.PolicyRandom, shm.PolicyClock, shm.PolicyFIFO, shm.PolicyLRU,
		shm.PolicyLFU} {
		names = append(names, p.String())
	}
	return names
}

// check is part of tier.Kind.
func check(from source.Settings, about tier.About) error {
	_, err := read(from, about)
	return err
}

// path returns the file of a cache.
func (s *settings) path(about tier.About) string { return filepath.Join(s.Dir, about.Cache+".tier") }

// options returns what the segment in the file must be.
func (s *settings) options(about tier.About) shm.Options {
	sum := sha256.Sum256([]byte(about.Info.Local())) // which may be longer than the header's
	return shm.Options{Samples: uint64(about.Info.Samples), SampleBytes: about.Info.Schema.SampleBytes,
		Variable: about.Info.Schema.Variable, Limit: uint64(s.Size), Policy: s.policy,
		Fingerprint: hex.EncodeToString(sum[:])[:shm.FingerprintBytes]}
}

// fileSystems are those that a folder for a tier may be on, by their numbers in statfs: diskfile.CheckLocal refuses others.
var fileSystems = map[int64]string{unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs",
	unix.F2FS_SUPER_MAGIC: "f2fs", 0x2fc12fc1: "zfs", unix.OVERLAYFS_SUPER_MAGIC: "overlayfs", unix.TMPFS_MAGIC: "tmpfs",
	unix.RAMFS_MAGIC: "ramfs", unix.FUSE_SUPER_MAGIC: "fuse"}

// fileSystem names a file system by its number.
func fileSystem(number int64) string {
	if name := fileSystems[number]; name != "" {
		return name
	}
	return fmt.Sprintf("unknown (%#x)", number)
}

// onDisk returns how many bytes of a disk a file takes; 0: there is no such file.
func onDisk(path string) uint64 {
	var file unix.Stat_t
	if unix.Stat(path, &file) != nil {
		return 0
	}
	return uint64(file.Blocks) * 512
}

// examine is part of tier.Kind.
func examine(_ context.Context, from source.Settings, about tier.About) (all []tier.Finding, err error) {
	s, err := read(from, about)
	if err != nil {
		return nil, err
	}
	found := tier.Finding{Where: s.path(about), What: "file system"}
	var fs unix.Statfs_t
	if err := unix.Statfs(s.Dir, &fs); err != nil {
		found.Answer, found.Change = err.Error(), "make the folder, on a local disk"
		return []tier.Finding{found}, nil
	}
	free := uint64(fs.Bavail)*uint64(fs.Bsize) + onDisk(s.path(about))
	found.Answer = size.Text(free) + " free for this file"
	if free < uint64(s.Size) {
		found.Change = fmt.Sprintf("size is %s: make it smaller, or free space", size.Text(uint64(s.Size)))
	}
	kind := tier.Finding{Where: found.Where, What: "kind of file system", Answer: fileSystem(fs.Type)}
	switch fs.Type {
	case unix.TMPFS_MAGIC, unix.RAMFS_MAGIC:
		kind.Change = "it is memory, which the segment uses better; give a folder on a disk"
	case unix.FUSE_SUPER_MAGIC:
		kind.Change = "it may be remote, and reads wait for it when it hangs; give a folder on a local disk"
	}
	return []tier.Finding{found, kind}, nil
}
