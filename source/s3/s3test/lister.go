package s3test

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
)

// Lister answers requests for the list of a bucket that has Objects objects and stores none of them.
// Listed counts the pages.
type Lister struct {
	Objects int
	Listed  atomic.Int64
}

// page is how many objects one answer lists.
const page = 1000

// Name returns the key of an object. Keys are in the order of their numbers.
func (l *Lister) Name(i int) string { return fmt.Sprintf("data/class-%03d/%09d.jpg", i/10_000, i) }

// ServeHTTP answers a ListObjectsV2.
func (l *Lister) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("list-type") != "2" || r.URL.Query().Get("prefix") != "data/" {
		w.WriteHeader(http.StatusNotImplemented)
		return
	}
	l.Listed.Add(1)
	from, _ := strconv.Atoi(r.URL.Query().Get("continuation-token"))
	to := min(from+page, l.Objects)
	var b strings.Builder
	fmt.Fprintf(&b, "<ListBucketResult><Name>b</Name><Prefix>data/</Prefix><KeyCount>%d</KeyCount><MaxKeys>%d</MaxKeys>"+
		"<IsTruncated>%v</IsTruncated>", to-from, page, to < l.Objects)
	if to < l.Objects {
		fmt.Fprintf(&b, "<NextContinuationToken>%d</NextContinuationToken>", to)
	}
	for i := from; i < to; i++ {
		fmt.Fprintf(&b, "<Contents><Key>%s</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>&quot;%032x&quot;</ETag>"+
			"<Size>%d</Size><StorageClass>STANDARD</StorageClass></Contents>", l.Name(i), i, 100_000+i%1000)
	}
	b.WriteString("</ListBucketResult>")
	w.Header().Set("Content-Type", "application/xml")
	_, _ = w.Write([]byte(b.String())) // the client may be gone
}
