package cluster

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/stocached/stocached/internal/clock"
)

// conn is a connection to a node. Its reads end when no byte comes for the timeout, and when its
// node is left out.
type conn struct {
	*net.TCPConn
	node     *node
	limit    atomic.Int64 // time when all reads end, by package clock; 0: none
	deadline atomic.Int64 // deadline that is set
	ended    atomic.Bool
	answers  answers // checks go-redis's reads, which are one after the other
}

// handshake is the beginning of the text of an error.
const handshake = "TLS handshake"

// dial connects to a node, for go-redis.
func (n *node) dial(ctx context.Context, network, address string) (net.Conn, error) {
	raw, err := (&net.Dialer{Timeout: n.tier.s.Timeout}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c := &conn{TCPConn: raw.(*net.TCPConn), node: n, answers: answers{most: n.tier.s.most}}
	n.mu.Lock()
	n.conns[c] = true
	n.mu.Unlock()
	if n.tier.s.tls == nil {
		return c, nil
	}
	config := n.tier.s.tls.Clone()
	if config.ServerName == "" {
		config.ServerName, _, _ = net.SplitHostPort(address)
	}
	t := tls.Client(c, config)
	ctx, cancel := context.WithTimeout(ctx, n.tier.s.Timeout)
	defer cancel()
	if err := t.HandshakeContext(ctx); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("%s: %w", handshake, err)
	}
	return tlsConn{t, c}, nil
}

// extend sets the deadline of a read that begins now. It leaves one that is nearly right, which saves time.
func (c *conn) extend() error {
	timeout := c.node.tier.s.Timeout
	now := int64(clock.Now())
	next := now + int64(timeout)
	if limit := c.limit.Load(); limit != 0 {
		next = min(next, limit)
	}
	if set := c.deadline.Load(); set != 0 && next >= set && next-set < int64(timeout/16) {
		return nil
	}
	c.deadline.Store(next)
	return c.TCPConn.SetReadDeadline(time.Now().Add(time.Duration(next - now)))
}

// Read is part of net.Conn.
func (c *conn) Read(b []byte) (int, error) {
	if err := c.extend(); err != nil {
		return 0, err
	}
	n, err := c.TCPConn.Read(b)
	if c.node.tier.s.tls == nil {
		return c.follow(b[:n], err)
	}
	return n, err
}

// follow ends a read that has got these bytes. go-redis gets none of bytes that are wrong.
func (c *conn) follow(b []byte, err error) (int, error) {
	if wrong := c.answers.follow(b); wrong != nil {
		return 0, fmt.Errorf("%w; is %s a server of Redis or Valkey?", wrong, c.RemoteAddr())
	}
	return len(b), err
}

// SetReadDeadline is part of net.Conn.
func (c *conn) SetReadDeadline(t time.Time) error {
	limit := int64(0)
	if !t.IsZero() {
		limit = max(int64(clock.Now()+time.Until(t)), 1)
	}
	c.limit.Store(limit)
	return c.extend()
}

// SetDeadline is part of net.Conn.
func (c *conn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

// Close is part of net.Conn.
func (c *conn) Close() error {
	c.ended.Store(true)
	c.node.mu.Lock()
	delete(c.node.conns, c)
	c.node.mu.Unlock()
	return c.TCPConn.Close()
}

// tlsConn tells go-redis, which looks at idle connections by their descriptor, whether it is closed.
type tlsConn struct {
	*tls.Conn
	raw *conn
}

// Read is part of net.Conn.
func (c tlsConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	return c.raw.follow(b[:n], err)
}

// SyscallConn is part of syscall.Conn.
func (c tlsConn) SyscallConn() (syscall.RawConn, error) {
	if c.raw.ended.Load() {
		return nil, net.ErrClosed
	}
	return unseen{}, nil
}

// unseen is a descriptor that cannot be looked at: its bytes belong to TLS.
type unseen struct{}

func (unseen) Control(func(uintptr)) error    { return nil }
func (unseen) Read(func(uintptr) bool) error  { return nil }
func (unseen) Write(func(uintptr) bool) error { return nil }
