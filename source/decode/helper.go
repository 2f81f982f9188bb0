package decode

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	helperVariable = "STOCACHED_DECODE" // the path of the helper; set and empty: Go's decoders
	helperName     = "stocached-decode"
	frames         = 1          // as in cimage/decode_main.c; part of the fingerprint, too
	magic          = 0x44435453 // of the first frame
	startLimit     = 10 * time.Second
	leastShared    = 1 << 20
)

// decodeLimit is the longest that the helper may take for a picture. Tests change it.
var decodeLimit = 60 * time.Second

const (
	opDecode = 1
	opResize = 2
)

// request is a frame to the helper: docs/spec/decode.md.
type request struct {
	Operation, Release               uint32
	Memory, Input, Result, MaxPixels uint64
	Width, Height                    uint32
	PictureWidth, PictureHeight      uint32
	ResizedWidth, ResizedHeight      uint32
	WindowX, WindowY                 uint32
	Fit, Layout                      uint32
}

// answer is a frame from the helper.
type answer struct {
	Code        int32 // 0, or a code of stocached_image.h
	Frames      uint32
	Nanoseconds uint64 // of processor time
	Message     [240]byte
}

const codeMemory = -5 // STOC_IMAGE_EMEMORY

func (a *answer) text() string {
	text, _, _ := bytes.Cut(a.Message[:], []byte{0})
	return strings.ToValidUTF8(string(text), "?")
}

// helperPath returns the path of the helper; "": there is none.
func helperPath() (string, error) {
	if path, ok := os.LookupEnv(helperVariable); ok {
		if path == "" {
			return "", nil
		}
		return filepath.Abs(path)
	}
	program, err := os.Executable()
	if err != nil {
		return "", nil
	}
	path := filepath.Join(filepath.Dir(program), helperName)
	if _, err := os.Stat(path); err != nil {
		return "", nil
	}
	return path, nil
}

// helper is a process of stocached-decode. One goroutine at a time uses it.
type helper struct {
	cmd     *exec.Cmd
	socket  *os.File
	memory  *os.File // a memfd
	shared  []byte   // maps it
	decoder string   // which library the process has
	said    tail
	ended   chan struct{} // closed when the process has ended
}

// lostError means that a helper died or hung, or did not start: that is no fault of the picture.
type lostError struct {
	error
	again bool // another helper may do it
}

// startHelper starts a process.
func startHelper(path string) (h *helper, err error) {
	h = &helper{ended: make(chan struct{})}
	defer func() {
		if err != nil {
			h.stop()
			h, err = nil, &lostError{fmt.Errorf("%s does not start: %w; install it again (make install) and restart the "+
				"server, or set %s= to decode with Go's slower decoders", path, err, helperVariable), true}
		}
	}()
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return h, fmt.Errorf("socketpair: %w", err)
	}
	theirs := os.NewFile(uintptr(ends[1]), "socket")
	defer theirs.Close()
	err = unix.SetNonblock(ends[0], true) // so that reads have deadlines
	h.socket = os.NewFile(uintptr(ends[0]), "socket")
	if err != nil {
		return h, err
	}
	memory, err := unix.MemfdCreate(helperName, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return h, fmt.Errorf("memfd_create: %w", err)
	}
	h.memory = os.NewFile(uintptr(memory), "memory")
	// A helper that made the memory shorter would kill the server by a SIGBUS.
	if _, err := unix.FcntlInt(h.memory.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
		return h, fmt.Errorf("sealing a memfd: %w", err)
	}
	cmd := exec.Command(path)
	cmd.ExtraFiles, cmd.Stderr = []*os.File{theirs, h.memory}, &h.said
	cmd.WaitDelay = time.Second // if another process has its standard error
	if err := cmd.Start(); err != nil {
		return h, err
	}
	h.cmd = cmd
	go func() {
		_ = cmd.Wait()
		close(h.ended)
	}()
	theirs.Close()
	var first answer
	if err := h.receive(&first, startLimit); err != nil {
		return h, h.died(err, startLimit)
	}
	if first.Code != magic || first.Frames != frames {
		return h, fmt.Errorf("it is of another version: its frames are %d, those of this server %d", first.Frames, frames)
	}
	h.decoder = first.text()
	return h, nil
}

// receive reads a frame.
func (h *helper) receive(a *answer, limit time.Duration) error {
	if err := h.socket.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	return h.next(a)
}

func (h *helper) next(a *answer) error {
	var frame [256]byte
	n, err := h.socket.Read(frame[:])
	if err == nil && n != len(frame) {
		err = fmt.Errorf("a frame of %d bytes", n)
	}
	if err != nil {
		return err
	}
	_, err = binary.Decode(frame[:], binary.NativeEndian, a)
	return err
}

// died kills the process, and says how it ended. err is that of the socket.
func (h *helper) died(err error, limit time.Duration) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		h.kill()
		return fmt.Errorf("it did not answer within %v and was killed", limit)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
		select { // the socket closes a moment before the process ends
		case <-h.ended:
		case <-time.After(time.Second):
		}
		h.kill()
		text := h.cmd.ProcessState.String()
		if said := strings.TrimSpace(h.said.String()); said != "" {
			text += ": " + said
		}
		return errors.New(text)
	}
	h.kill()
	return err
}

func (h *helper) kill() {
	_ = h.cmd.Process.Kill()
	<-h.ended
}

// stop ends the process and gives back all that belongs to it.
func (h *helper) stop() {
	if h.cmd != nil {
		h.kill()
	}
	if h.shared != nil {
		_ = unix.Munmap(h.shared)
		h.shared = nil
	}
	for _, f := range []*os.File{h.socket, h.memory} {
		if f != nil {
			f.Close()
		}
	}
}

// room makes the shared memory at least so large. Pages take memory when they are written.
func (h *helper) room(n int) error {
	if n <= len(h.shared) {
		return nil
	}
	n = 1 << bits.Len(uint(max(n, leastShared)-1))
	if err := h.memory.Truncate(int64(n)); err != nil {
		return err
	}
	if h.shared != nil {
		_ = unix.Munmap(h.shared)
		h.shared = nil
	}
	var err error
	h.shared, err = unix.Mmap(int(h.memory.Fd()), 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return err
}

// do sends a request, whose input lies in the shared memory, and waits for the answer. It
// returns the processor time of the helper. Errors are lostError, after which the helper must be
// stopped, and those of the picture.
func (h *helper) do(ctx context.Context, r *request) (used time.Duration, err error) {
	r.Memory = uint64(len(h.shared))
	var a answer
	frame, err := binary.Append(make([]byte, 0, 80), binary.NativeEndian, r)
	if err == nil {
		err = h.socket.SetReadDeadline(time.Now().Add(decodeLimit))
	}
	if err == nil {
		ended := context.AfterFunc(ctx, func() { _ = h.socket.SetReadDeadline(time.Unix(1, 0)) })
		if _, err = h.socket.Write(frame); err == nil {
			err = h.next(&a)
		}
		if !ended() { // the deadline may change at any time, so no other picture may use this helper
			return 0, &lostError{context.Cause(ctx), false}
		}
	}
	used = time.Duration(a.Nanoseconds)
	switch {
	case err != nil:
		return 0, &lostError{fmt.Errorf("%s: %w", helperName, h.died(err, decodeLimit)), !errors.Is(err, os.ErrDeadlineExceeded)}
	case a.Code == codeMemory:
		err = &lostError{fmt.Errorf("%s: %s", helperName, a.text()), false}
	case a.Code != 0:
		err = errors.New(a.text())
	}
	return used, err
}

// forget gives the memory of a large picture back to the system.
func (h *helper) forget() error {
	return unix.Fallocate(int(h.memory.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, int64(len(h.shared)))
}

// tail keeps the first bytes that a process says, for messages.
type tail struct{ bytes.Buffer }

func (t *tail) Write(text []byte) (int, error) {
	t.Buffer.Write(text[:min(len(text), 500-min(t.Len(), 500))])
	return len(text), nil
}
