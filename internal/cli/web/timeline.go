package web

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/stocached/stocached/internal/cli/table"
	"github.com/stocached/stocached/internal/timeline"
)

// errBusy is the error of a timeline for which there is no memory, because others are being received.
var errBusy = errors.New("other timelines are being received; send it again in a moment")

// timeline draws a file that was posted, as stocached trace does. It waits for no browser while it draws: others wait
// for that.
func (p *Page) timeline(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Security-Policy", drawnPolicy)
	file := &received{page: p}
	defer file.forget()
	drawn, err := "", p.receive(w, r, file)
	if err == nil {
		drawn, err = p.draw(file)
	}
	var large *http.MaxBytesError
	switch {
	case errors.Is(err, errBusy):
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	case errors.As(err, &large):
		http.Error(w, fmt.Sprintf("the file has more than %v: stocached trace FILE -o FILE.html draws it",
			table.Bytes(p.MaxTimeline)), http.StatusBadRequest)
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadRequest)
	default:
		w.Header().Set("Content-Type", types[".html"])
		_, _ = io.WriteString(w, drawn) // the browser may be gone
	}
}

// received is a file that was posted. Its bytes count for the page until forget.
type received struct {
	page    *Page
	name    string
	content bytes.Buffer
	counted int64
}

// Write refuses bytes for which there is no memory.
func (f *received) Write(b []byte) (int, error) {
	f.counted += int64(len(b))
	if f.page.received.Add(int64(len(b))) > 2*f.page.MaxTimeline {
		return 0, errBusy
	}
	return f.content.Write(b)
}

func (f *received) forget() { f.page.received.Add(-f.counted) }

// receive reads the file in the form of a request.
func (p *Page) receive(w http.ResponseWriter, r *http.Request, file *received) error {
	r.Body = http.MaxBytesReader(w, r.Body, p.MaxTimeline+1<<20) // a form around the file
	parts, err := r.MultipartReader()
	if err != nil {
		return fmt.Errorf("a form with a file is wanted: %w", err)
	}
	for {
		part, err := parts.NextPart()
		if err == io.EOF {
			return errors.New("the form has no file")
		}
		if err != nil {
			return err
		}
		if part.FormName() == "file" {
			file.name = table.Text(part.FileName())
			_, err := io.Copy(file, part)
			return err
		}
	}
}

// draw draws a file, unpacked if need be, one at a time.
func (p *Page) draw(file *received) (string, error) {
	p.drawing.Lock()
	defer p.drawing.Unlock()
	unpacked, err := timeline.Gunzip(bufio.NewReader(&file.content), timeline.ErrFormat)
	if err != nil {
		return "", fmt.Errorf("%s: %w", file.name, err)
	}
	trace, err := timeline.Read(http.MaxBytesReader(nil, io.NopCloser(unpacked), p.MaxTimeline)) // what was small may be large now
	if err != nil {
		return "", fmt.Errorf("%s: %w", file.name, err)
	}
	from, to := trace.Bounds()
	drawn := &strings.Builder{}
	err = timeline.HTML(drawn, trace, from, to)
	return drawn.String(), err
}
