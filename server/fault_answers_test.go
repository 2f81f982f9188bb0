package server_test

import (
	"testing"
	"time"

	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/server"
)

// When a client has too many answers waiting, the server stops reading its frames. It goes on when
// the client reads them, forgets a client that leaves, and can still end.
func TestMoreAnswersThanMayWait(t *testing.T) {
	server.SetDrainTimeout(t, 300*time.Millisecond)
	s, stop := start(t, options(t, newMemory(10, 100), server.CacheOptions{}))
	const requests = 20_000 // their answers fit into no socket buffer
	flood := func(p *peer) chan error {
		sent := make(chan error, 1)
		go func() {
			for id := range uint64(requests) {
				if _, err := p.socket.Write(control.AppendAttach(nil, 100+id,
					"no such cache, and a name that is as long as a name may be, so that the answer is a long one too")); err != nil {
					sent <- err
					return
				}
			}
			sent <- nil
		}()
		select {
		case err := <-sent:
			t.Fatalf("the server reads requests without end from a client that reads no answers: %v", err)
		case <-time.After(300 * time.Millisecond):
		}
		return sent
	}
	late := dial(t, s.Dir())
	sent := flood(late)
	for id := range uint64(requests) {
		if h, body := late.receive(); h.Type != control.Error || h.Request != 100+id {
			t.Fatalf("%v for request %d, want %d: %q", h.Type, h.Request, 100+id, body)
		}
	}
	expect.NoError(t, <-sent)
	gone := dial(t, s.Dir())
	sent = flood(gone)
	gone.socket.Close()
	<-sent
	fatal.Until(t, "who went away is forgotten", func() bool { return s.Connections() == 1 })
	sent = flood(dial(t, s.Dir()))
	began := time.Now()
	stop()
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("ending took %v", took)
	}
	<-sent
}
