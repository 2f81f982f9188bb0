package server_test

import (
	"testing"
	"time"

	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/server"
)

// A client that has more answers waiting than are kept is heard again when it takes them, is
// forgotten when it goes away instead, and keeps no server from ending.
func TestMoreAnswersThanMayWait(t *testing.T) {
	server.SetDrainTimeout(t, 300*time.Millisecond)
	s, stop := start(t, options(t, newMemory(10, 100), server.CacheOptions{}))
	const requests = 20_000 // whose answers fit no socket
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
			t.Fatalf("the server takes requests without end from somebody who takes no answers: %v", err)
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
	if err := <-sent; err != nil {
		t.Error(err)
	}
	gone := dial(t, s.Dir())
	sent = flood(gone)
	gone.socket.Close()
	<-sent
	eventually(t, "who went away is forgotten", func() bool { return s.Connections() == 1 })
	sent = flood(dial(t, s.Dir()))
	began := time.Now()
	stop()
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("ending took %v", took)
	}
	<-sent
}
