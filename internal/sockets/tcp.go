package sockets

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"
)

// ListenTCP listens on host:port; without a host on the loopback. Errors begin with key, the option
// that has the address.
func ListenTCP(ctx context.Context, key, address string) (net.Listener, error) {
	if strings.HasPrefix(address, ":") {
		address = "127.0.0.1" + address
	}
	network := "tcp"
	if asked, err := netip.ParseAddrPort(address); err == nil && asked.Addr().Is4() {
		network = "tcp4" // 0.0.0.0 is not all of IPv6 too
	}
	l, err := new(net.ListenConfig).Listen(ctx, network, address)
	if errors.Is(err, unix.EADDRINUSE) {
		err = fmt.Errorf("%w: another program listens there; take another port, or 0 for any free one", err)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	return l, nil
}
