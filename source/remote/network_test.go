package remote_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stocached/stocached/source/remote"
	"github.com/stocached/stocached/source/wrap"
)

// Ensure that a connection that comes too late is tried again: Go calls it the end of a context too.
func TestLateConnection(t *testing.T) {
	_, err := (&net.Dialer{Deadline: time.Now().Add(-time.Second)}).DialContext(context.Background(), "tcp", "127.0.0.1:9")
	if late, ok := err.(net.Error); !ok || !late.Timeout() {
		t.Fatal(err)
	}
	if err := remote.NetworkError("http://127.0.0.1:9/x", err); !wrap.Retryable(err) {
		t.Errorf("%v is final", err)
	}
}
