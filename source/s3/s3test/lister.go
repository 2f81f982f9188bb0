package s3test

import (
	"encoding/xml"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
)

// Lister answers requests for the list of a bucket that has Objects objects and stores none of them.
// Listed counts the pages. The fields below it change the answers.
type Lister struct {
	Objects int
	Listed  atomic.Int64

	Key   func(i int) string // the key of the i-th object of the list; nil: Name
	Page  int                // how many objects one answer lists; 0: 1000
	Spoil Spoil              // answers in place of the Lister; nil: nothing does
}

// Name returns the key of an object. Keys are in the order of their numbers.
func (l *Lister) Name(i int) string { return fmt.Sprintf("data/class-%03d/%09d.jpg", i/10_000, i) }

// ServeHTTP answers a ListObjectsV2.
func (l *Lister) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if l.Spoil != nil {
		l.Spoil(w, r, http.HandlerFunc(l.list))
		return
	}
	l.list(w, r)
}

func (l *Lister) list(w http.ResponseWriter, r *http.Request) {
	q, key, page := r.URL.Query(), l.Key, l.Page
	prefix := q.Get("prefix")
	if q.Get("list-type") != "2" || !strings.HasPrefix(prefix, "data/") {
		w.WriteHeader(http.StatusNotImplemented)
		return
	}
	if key == nil {
		key = l.Name
	}
	if page == 0 {
		page = 1000
	}
	l.Listed.Add(1)
	from, _ := strconv.Atoi(q.Get("continuation-token"))
	to := min(from+page, l.Objects)
	var b strings.Builder
	fmt.Fprintf(&b, "<ListBucketResult><Name>b</Name><Prefix>%s</Prefix><KeyCount>%d</KeyCount><MaxKeys>%d</MaxKeys>"+
		"<IsTruncated>%v</IsTruncated><EncodingType>%s</EncodingType>", url.QueryEscape(prefix), to-from, page, to < l.Objects,
		q.Get("encoding-type"))
	if to < l.Objects {
		fmt.Fprintf(&b, "<NextContinuationToken>%d</NextContinuationToken>", to)
	}
	for i := from; i < to; i++ {
		name := key(i)
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		if q.Get("encoding-type") == "url" {
			name = url.QueryEscape(name)
		}
		b.WriteString("<Contents><Key>")
		_ = xml.EscapeText(&b, []byte(name)) // a Builder takes all
		fmt.Fprintf(&b, "</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>&quot;%032x&quot;</ETag>"+
			"<Size>%d</Size><StorageClass>STANDARD</StorageClass></Contents>", i, 100_000+i%1000)
	}
	b.WriteString("</ListBucketResult>")
	w.Header().Set("Content-Type", "application/xml")
	_, _ = w.Write([]byte(b.String())) // the client may be gone
}
