package measure

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// asked is another process that reads a sample and writes it to a file on the tmpfs on request.
// Requests come over a unix socket, one sample at a time. It uses only blocking system calls, the
// least that any server does for a miss.
type asked struct {
	command *exec.Cmd
	socket  *os.File
	pages   []byte // of the file, to copy from
}

// askedWorker is that worker: asked SOURCE BYTES, with the socket and the output file as
// descriptors 3 and 4.
func askedWorker(source string, bytes int) error {
	runtime.LockOSThread()
	f, err := os.Open(source)
	if err != nil {
		return err
	}
	buffer, message := make([]byte, bytes), make([]byte, 8)
	for {
		if n, err := unix.Read(3, message); n == 0 || err != nil {
			return err
		}
		i := int64(binary.LittleEndian.Uint64(message))
		if err := readAt(int(f.Fd()), buffer, i*int64(bytes)); err != nil {
			return err
		}
		if err := writeAt(4, buffer, i*int64(bytes)); err != nil {
			return err
		}
		if _, err := unix.Write(3, message); err != nil {
			return err
		}
	}
}

// startAsked starts the worker. The caller still owns out.
func startAsked(program []string, source string, r Records, out *os.File) (a *asked, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	theirs := os.NewFile(uintptr(pair[1]), "socket")
	defer theirs.Close()
	a = &asked{socket: os.NewFile(uintptr(pair[0]), "socket")}
	a.command = exec.Command(program[0],
		append(program[1:len(program):len(program)], "asked", source, strconv.Itoa(r.Bytes))...)
	a.command.Stderr, a.command.ExtraFiles = os.Stderr, []*os.File{theirs, out}
	a.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := a.command.Start(); err != nil {
		return nil, errors.Join(err, a.socket.Close())
	}
	if a.pages, err = unix.Mmap(int(out.Fd()), 0, r.Samples*r.Bytes, unix.PROT_READ, unix.MAP_SHARED); err != nil {
		return nil, errors.Join(err, a.end())
	}
	return a, nil
}

// fetch requests a sample, waits, and copies it.
func (a *asked) fetch(i int, dst []byte) error {
	var message [8]byte
	binary.LittleEndian.PutUint64(message[:], uint64(i))
	if _, err := unix.Write(int(a.socket.Fd()), message[:]); err != nil {
		return err
	}
	if n, err := unix.Read(int(a.socket.Fd()), message[:]); n != len(message) || err != nil {
		return fmt.Errorf("answer of %d bytes: %w", n, err)
	}
	copy(dst, a.pages[i*len(dst):])
	return nil
}

func (a *asked) end() (err error) {
	if a.pages != nil {
		err = unix.Munmap(a.pages)
	}
	return errors.Join(err, a.socket.Close(), a.command.Wait()) // the worker ends when its socket is closed
}
