package diskfile

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/shm"
)

// NetworkFileSystems are those whose files no segment on a disk may be, by their numbers in statfs.
// Their server may not answer, and no call of the system ends a read that waits for it. A file
// system in a program (FUSE) has one number for local and remote ones, so it is not here. C has the
// same table: go generate ./shm.
var NetworkFileSystems = map[uint32]string{unix.NFS_SUPER_MAGIC: "nfs", unix.SMB_SUPER_MAGIC: "smb", unix.CIFS_SUPER_MAGIC: "cifs",
	unix.SMB2_SUPER_MAGIC: "smb2", unix.V9FS_MAGIC: "9p", unix.AFS_SUPER_MAGIC: "afs", unix.AFS_FS_MAGIC: "afs",
	unix.CODA_SUPER_MAGIC: "coda", unix.CEPH_SUPER_MAGIC: "ceph", 0x0bd00bd0: "lustre", 0x47504653: "gpfs", 0x19830326: "beegfs",
	0xaad7aaea: "panfs", 0x786f4256: "vboxsf", 0xbacbacbc: "vmhgfs"}

// CheckLocal returns ErrInvalid if a folder is on a network file system. Nothing else is an error
// here: who opens a file in the folder gets it.
func CheckLocal(dir string) error {
	var fs unix.Statfs_t
	if unix.Statfs(dir, &fs) != nil {
		return nil
	}
	if name := NetworkFileSystems[uint32(fs.Type)]; name != "" {
		return fmt.Errorf("%w: the folder %s is on a network file system (%s), which may hang; give a folder on a local disk",
			shm.ErrInvalid, dir, name)
	}
	return nil
}
