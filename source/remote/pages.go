package remote

import (
	"bytes"
	"fmt"
	"io"
	"mime"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/stocached/stocached/source"
)

// The types of answers that say something in place of a file, and the files that may have these types.
var (
	htmlTypes = []string{"text/html", "application/xhtml+xml"}
	htmlFiles = []string{".html", ".htm", ".xhtml", ".xht"}
	xmlTypes  = []string{"application/xml", "text/xml"}
	errorRoot = regexp.MustCompile(`^\s*(?:\x{FEFF}\s*)?(?:<\?xml[^>]*>\s*)?(?:<!--[^>]*-->\s*)*<Error[\s>/]`)
)

// headBytes is how much of an answer says what it is.
const headBytes = 512

// checkKind returns ErrInvalid if the answer to a request for an object is a page of HTML and the object, by its name,
// is none: a login page, a page of a proxy or one about an error, which comes for every name. A document of storage
// about an error, which some servers send with the status 200, gets the status 500.
func checkKind(r *http.Request, a *http.Response) error {
	named := r // before redirects
	for named.Response != nil && named.Response.Request != nil {
		named = named.Response.Request
	}
	said := a.Header.Get("Content-Type")
	kind, _, err := mime.ParseMediaType(said)
	if err != nil {
		kind = strings.ToLower(strings.TrimSpace(strings.SplitN(said, ";", 2)[0]))
	}
	var head []byte
	whole := a.StatusCode == http.StatusOK // bytes in the middle of a file do not say what it is
	if begins := whole || strings.HasPrefix(a.Header.Get("Content-Range"), "bytes 0-"); r.Method == http.MethodGet && begins &&
		(kind == "" || whole && slices.Contains(xmlTypes, kind)) {
		if head = peek(a); kind == "" {
			kind, _, _ = strings.Cut(http.DetectContentType(head), ";")
		}
	}
	end := strings.ToLower(path.Ext(named.URL.Path))
	switch {
	case whole && slices.Contains(xmlTypes, kind) && end != ".xml" && errorRoot.Match(head):
		a.StatusCode, a.Status = http.StatusInternalServerError, "500 Internal Server Error"
	case slices.Contains(htmlTypes, kind) && (source.IsOfRecords(r.Context()) || end != "" && !slices.Contains(htmlFiles, end)):
		from := ""
		if named != r {
			from = ", after a redirect to " + r.URL.Host
		}
		return fmt.Errorf("%w: the server answered %d with a page of HTML (Content-Type: %q%s) in place of the file, such as a login "+
			"page or one of a proxy; look at the address in a browser. If the file is there, set the server up to give it "+
			"another type", source.ErrInvalid, a.StatusCode, said, from)
	}
	return nil
}

// peek returns the first bytes of an answer, which its body still has.
func peek(a *http.Response) []byte {
	head, _ := io.ReadAll(io.LimitReader(a.Body, headBytes)) // the body gives the error again
	a.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(head), a.Body), a.Body}
	return head
}
