package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	stocclient "github.com/stocached/stocached/client"
	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/cli/table"
	"github.com/stocached/stocached/internal/sockets"
	"github.com/stocached/stocached/shm"
)

// admin sends requests to the admin socket in a folder; "": the folder of this user's server.
type admin struct{ dir string }

// answerDeadline is how long a server that is not stopped may take for an answer without work.
var answerDeadline = 10 * time.Second

// answers returns ErrNoServer if a server is stopped: a request that may take long waits for it without a word.
func (a admin) answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerDeadline)
	defer cancel()
	_, _, err := a.get(ctx, "/healthz")
	return err
}

// get is request of the method GET.
func (a admin) get(ctx context.Context, path string) (status int, body []byte, err error) {
	return a.request(ctx, http.MethodGet, path)
}

// request requests a path, and returns the status and the body. Errors: ErrNoServer if no server
// answers before ctx ends.
func (a admin) request(ctx context.Context, method, path string) (status int, body []byte, err error) {
	folder := sockets.Find(a.dir)
	socket := filepath.Join(folder.Path, control.AdminSocket)
	transport := &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return folder.Dial(ctx, control.AdminSocket)
		}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, method, "http://stocached"+path, nil)
	if err != nil {
		return 0, nil, err
	}
	answer, err := transport.RoundTrip(request)
	if err == nil {
		defer answer.Body.Close()
		body, err = io.ReadAll(io.LimitReader(answer.Body, 64<<20))
	}
	switch {
	case err == nil:
		return answer.StatusCode, body, nil
	case errors.Is(err, context.DeadlineExceeded):
		return 0, nil, fmt.Errorf("%w: %s did not answer in time; it may be stopped or overloaded",
			stocclient.ErrNoServer, socket)
	case ctx.Err() != nil:
		return 0, nil, context.Cause(ctx)
	case errors.Is(err, shm.ErrPermission):
		return 0, nil, err
	}
	return 0, nil, fmt.Errorf("%w answers on %s (%w); start it: stocached serve -c config.yaml (or set STOCACHED_SOCKETS_DIR to where it listens)",
		stocclient.ErrNoServer, socket, err)
}

// json requests a path and decodes the answer into v.
func (a admin) json(ctx context.Context, path string, v any) error {
	status, body, err := a.get(ctx, path)
	if err != nil {
		return err
	}
	if status != http.StatusOK {
		return errors.New(complaint(status, body))
	}
	return json.Unmarshal(body, v)
}

// complaint returns the error text of an answer.
func complaint(status int, body []byte) string {
	var failed struct{ Error string }
	if err := json.Unmarshal(body, &failed); err == nil && failed.Error != "" {
		return table.Text(failed.Error)
	}
	return fmt.Sprintf("status %d: %s", status, table.Text(strings.TrimSpace(string(body[:min(len(body), 200)]))))
}
