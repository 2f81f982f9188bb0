package session

import (
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/fault"
	"github.com/stocached/stocached/server/fill"

	"golang.org/x/sys/unix"
)

// StallTimeout is how long a client may take nothing of what it is sent. A variable for tests.
var StallTimeout = 30 * time.Second

// writePiece is how much is written within one StallTimeout.
const writePiece = 256 << 10

// What may wait to be written before a client's next frame is not read: it asks faster than it
// takes answers. More than the answers of all requests that may be under way.
const (
	maxAnswers     = 2 * control.MaxRequests
	maxAnswerBytes = 1 << 20
)

// output is what a connection has to write: frames in their order, written by one goroutine, so
// that no other goroutine waits for a client.
type output struct {
	socket      *net.UnixConn
	drained     func()       // called when there is room for samples again
	replies     *Budget      // for what waits
	requests    *Budget      // for requests, whose part is given back when they are answered
	own         atomic.Int64 // of requests, this connection's part
	hasAnswered atomic.Bool  // a sample, or the end of a request, was written
	gone        atomic.Bool  // like dead, for callers that must not wait for mu

	mu      sync.Mutex // protects what follows
	wake    sync.Cond
	frames  []frame
	waiting int       // bytes of samples in frames, or about to be
	refused bool      // one did not fit
	short   int       // bytes of a sample for which all connections together had no room; 0: there was none
	shortAt int       // it is not tried again before so little waits
	answers int       // frames without a sample that wait, the one being written among them
	bytes   int       // of these
	room    sync.Cond // there may be room for answers
	writing bool      // run is writing a frame
	ending  bool      // write what is there, then close
	last    time.Time // nothing is written after it; zero: there is no such time
	dead    bool      // write nothing any more
}

// frame is one frame to write: head, then the bytes of a sample, if any.
type frame struct {
	head       []byte
	data       *fill.Buffer
	descriptor *os.File // goes with the first byte, and is closed then
	reserved   int      // bytes of the request that it answers
}

func newOutput(socket *net.UnixConn, drained func()) *output {
	o := &output{socket: socket, drained: drained, replies: unlimited, requests: unlimited}
	o.wake.L, o.room.L = &o.mu, &o.mu
	return o
}

// canTake says whether n more bytes of a sample may wait: when none does, as far as all connections
// together have room for them. Then sample has to follow.
func (o *output) canTake(n int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.dead:
		return true
	case o.waiting > 0 && o.waiting+n > control.MaxWaitingSend:
		o.refused = true
		return false
	case !o.replies.take(o.waiting, n, o.clientReads):
		o.short, o.shortAt = n, o.waiting/2
		return false
	}
	o.waiting += n
	return true
}

// full says whether samples are better not read: enough of them wait, or one was refused and half
// of what waited is not written yet.
func (o *output) full() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.isFull()
}

// isFull is full with mu held.
func (o *output) isFull() bool {
	if o.short > 0 && o.waiting <= o.shortAt && o.replies.hasRoom(o.waiting, o.short, o.clientReads) {
		o.short = 0
	}
	return !o.dead && (o.refused || o.short > 0 || o.waiting >= control.MaxWaitingSend)
}

// send queues a frame without a sample.
func (o *output) send(head []byte) { o.queue(frame{head: head}) }

// answer queues the last frame of a request, for which reserve has taken so many bytes.
func (o *output) answer(head []byte, reserved int) { o.queue(frame{head: head, reserved: reserved}) }

// sendDescriptor queues a frame that takes a descriptor along, which is the output's from here on.
func (o *output) sendDescriptor(head []byte, descriptor *os.File) {
	o.queue(frame{head: head, descriptor: descriptor})
}

// shorten leaves out texts of failures but the first when all connections together have no room for
// them.
func (o *output) shorten(failures []control.Failure) []control.Failure {
	size := 0
	for _, f := range failures {
		size += len(f.Text)
	}
	if size <= control.MaxText || o.replies.hasRoom(0, size, o.clientReads) {
		return failures
	}
	for k := range failures[1:] {
		failures[k+1].Text = ""
	}
	return failures
}

// sample queues a SAMPLE that takes has room for. It keeps the caller's share of data until it is
// written.
func (o *output) sample(request uint64, position uint32, data *fill.Buffer) {
	o.queue(frame{head: control.AppendSampleHeader(nil, request, position, len(data.Bytes)), data: data})
}

func (o *output) queue(f frame) {
	o.mu.Lock()
	short := o.add(f)
	o.mu.Unlock()
	if short {
		o.drained()
	}
}

// add is queue with mu held. It says whether others waited for memory that was given back.
func (o *output) add(f frame) (short bool) {
	if o.dead || o.ending {
		if f.data != nil && !o.dead {
			o.waiting -= len(f.data.Bytes)
			short = o.replies.give(len(f.data.Bytes))
		}
		o.drop(&f)
		return short
	}
	if f.data == nil && f.descriptor == nil && len(o.frames) == 0 && !o.writing {
		if f.head = o.writeNow(f.head); len(f.head) == 0 {
			o.written(&f)
			o.drop(&f)
			return false
		}
	}
	if f.data == nil {
		o.answers++
		o.bytes += len(f.head)
		o.replies.force(len(f.head))
	}
	o.frames = append(o.frames, f)
	o.wake.Signal()
	return false
}

// writeNow writes what the client takes without anybody waiting for it, and returns what is left:
// an answer that fits costs no switch to another goroutine. With mu held, and nothing else to write
// before.
func (o *output) writeNow(p []byte) []byte {
	raw, err := o.socket.SyscallConn()
	if err != nil {
		return p
	}
	n := 0
	err = raw.Write(func(fd uintptr) bool {
		if n, err = unix.SendmsgN(int(fd), p, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL); err != nil {
			n = 0 // run meets it again, and knows what to do
		}
		return true
	})
	if err == nil {
		fault.At("send.piece")
	}
	return p[n:]
}

// written notes that a frame was.
func (o *output) written(f *frame) {
	if f.data != nil || f.reserved > 0 {
		o.hasAnswered.Store(true)
	}
}

// drop lets go what a frame has.
func (o *output) drop(f *frame) {
	if f.data != nil {
		f.data.Release()
	}
	if f.descriptor != nil {
		f.descriptor.Close()
	}
	o.unreserve(f.reserved)
}

// clientReads says whether the client has read everything that was written, some answer among it.
func (o *output) clientReads() bool {
	raw, err := o.socket.SyscallConn()
	if err != nil || !o.hasAnswered.Load() {
		return false
	}
	unread := 1
	err = raw.Control(func(fd uintptr) {
		if unread, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ); err != nil {
			unread = 1
		}
	})
	return err == nil && unread == 0
}

// reserve takes n bytes for a request, when there is room for them. false: the server ends, or the
// client is gone.
func (o *output) reserve(n int) bool {
	if n == 0 {
		return true
	}
	ok := o.requests.await(int(o.own.Load()), n, o.clientReads, o.gone.Load)
	if ok {
		o.own.Add(int64(n))
	}
	return ok
}

// unreserve gives them back.
func (o *output) unreserve(n int) {
	if n > 0 {
		o.own.Add(-int64(n))
		o.requests.give(n)
	}
}

// waitForRoom waits until answers of a client may be queued again. It returns when the output ends
// or dies.
func (o *output) waitForRoom() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for !o.dead && !o.ending && (o.answers >= maxAnswers || o.bytes >= maxAnswerBytes || o.answers > 0 &&
		o.replies.over()) {
		o.room.Wait()
	}
}

// end writes what is queued and then makes run return; nothing is taken any more.
func (o *output) end() {
	o.mu.Lock()
	o.ending = true
	o.wake.Signal()
	o.room.Broadcast()
	o.mu.Unlock()
}

// setDeadline bounds how long anything is written.
func (o *output) setDeadline(t time.Time) {
	o.mu.Lock()
	o.last = t
	o.mu.Unlock()
	if err := o.socket.SetWriteDeadline(t); err != nil { // of the write that is going on
		o.socket.Close()
	}
}

// extendDeadline lets the next piece take StallTimeout, or what is left.
func (o *output) extendDeadline() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	t := time.Now().Add(StallTimeout)
	if !o.last.IsZero() && o.last.Before(t) {
		t = o.last
	}
	return o.socket.SetWriteDeadline(t)
}

// abort drops what is queued and makes run return.
func (o *output) abort() {
	o.mu.Lock()
	for k := range o.frames {
		o.drop(&o.frames[k])
	}
	o.replies.give(o.waiting + o.bytes)
	o.dead, o.frames, o.waiting, o.bytes, o.answers = true, nil, 0, 0, 0
	o.gone.Store(true)
	o.wake.Signal()
	o.room.Broadcast()
	o.mu.Unlock()
	o.requests.wake()
	o.drained()
}

// run writes until it is ended, or the client takes nothing any more.
func (o *output) run() error {
	for {
		o.mu.Lock()
		for len(o.frames) == 0 && !o.ending && !o.dead {
			o.wake.Wait()
		}
		if len(o.frames) == 0 {
			o.mu.Unlock()
			return nil
		}
		f := o.frames[0]
		o.frames = o.frames[1:]
		o.writing = true
		o.mu.Unlock()
		head := len(f.head)
		err := o.write(&f)
		o.written(&f)
		o.mu.Lock()
		o.writing = false
		drained := false
		switch {
		case o.dead: // which has given everything back
		case f.data == nil:
			o.answers--
			o.bytes -= head
			drained = o.replies.give(head)
			o.room.Broadcast()
		default:
			full := o.isFull()
			o.waiting -= len(f.data.Bytes)
			o.refused = o.refused && o.waiting > control.MaxWaitingSend/2
			short := o.replies.give(len(f.data.Bytes))
			drained = short || full && !o.isFull()
		}
		if len(o.frames) == 0 && o.last.IsZero() && err == nil {
			err = o.socket.SetWriteDeadline(time.Time{}) // or it would fire later, and delay what writeNow writes
		}
		o.mu.Unlock()
		if drained {
			o.drained()
		}
		o.drop(&f)
		if err != nil {
			return err
		}
	}
}

// write writes a frame, a piece at a time: each piece that the client takes gives it time for the
// next.
func (o *output) write(f *frame) error {
	if f.descriptor != nil {
		if err := o.extendDeadline(); err != nil {
			return err
		}
		n, _, err := o.socket.WriteMsgUnix(f.head, unix.UnixRights(int(f.descriptor.Fd())), nil)
		if err != nil {
			return err
		}
		f.head = f.head[n:]
		fault.At("send.descriptor")
	}
	for _, part := range [][]byte{f.head, f.bytes()} {
		for len(part) > 0 {
			if err := o.extendDeadline(); err != nil {
				return err
			}
			n, err := o.socket.Write(part[:min(len(part), writePiece)])
			if err != nil {
				return err
			}
			part = part[n:]
			fault.At("send.piece")
		}
	}
	return nil
}

func (f *frame) bytes() []byte {
	if f.data == nil {
		return nil
	}
	return f.data.Bytes
}
