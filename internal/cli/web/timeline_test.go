package web

import (
	"bytes"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
)

// Ensure that a browser that sends slowly, or that does not read its answer, holds up no other's timeline.
func TestSlowBrowsers(t *testing.T) {
	run := fatal.Value(os.ReadFile("../../timeline/testdata/run.json"))(t)
	s := httptest.NewServer(page(new(int)))
	t.Cleanup(s.Close)
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	part, _ := form.CreateFormFile("file", "run.json")
	part.Write(run)
	form.Close()
	request := fmt.Sprintf("POST /v1/timeline HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n",
		form.FormDataContentType(), body.Len())
	for _, sent := range []int{body.Len() / 2, body.Len()} { // half of it, or all without reading the answer
		for range 3 {
			c := fatal.Value(net.Dial("tcp", s.Listener.Addr().String()))(t)
			t.Cleanup(func() { c.Close() })
			c.(*net.TCPConn).SetReadBuffer(1)
			fatal.Value(io.WriteString(c, request+body.String()[:sent]))(t)
		}
	}
	client := &http.Client{Timeout: 30 * time.Second} // long before the slow ones are given up
	got := fatal.Value(client.Post(s.URL+"/v1/timeline", form.FormDataContentType(), bytes.NewReader(body.Bytes())))(t)
	defer got.Body.Close()
	if text, err := io.ReadAll(got.Body); err != nil || got.StatusCode != http.StatusOK || !bytes.Contains(text, []byte("The training loop waited")) {
		t.Errorf("%d, %v, %.200s", got.StatusCode, err, text)
	}
}

// Ensure that many timelines at a time are refused before they take more memory than is said.
func TestManyTimelines(t *testing.T) {
	p := page(new(int))
	p.received.Store(2*maxTimeline - 10)
	if got := askToDraw(t, p, "run.json", make([]byte, 100)); got.StatusCode != http.StatusServiceUnavailable {
		t.Error(got.StatusCode)
	}
	expect.Equal(t, p.received.Load(), 2*maxTimeline-10, "bytes counted")
}
