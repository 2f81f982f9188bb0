package remote_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/kinds"
	"github.com/stocached/stocached/source/s3/s3test"
	"github.com/stocached/stocached/source/sourcetest"
)

// listed opens the objects of a Lister as files. It returns how many they are.
func listed(t *testing.T, l *s3test.Lister, remote map[string]any) (int, error) {
	t.Helper()
	server := httptest.NewServer(l)
	defer server.Close()
	all := map[string]any{"endpoint": server.URL}
	maps.Copy(all, remote)
	s, err := kinds.Open(t.Context(), source.Settings{"kind": "dir", "path": "s3://many/data", "remote": all})
	if err != nil {
		return 0, err
	}
	defer s.Close()
	return s.Info().Samples, nil
}

// Ensure that an answer which is no page of a list never ends the list: it is an error that says what came, or it is
// asked for again.
func TestAnswersThatAreNoPages(t *testing.T) {
	s3test.Environment(t)
	var tests sync.WaitGroup // side by side, because tries are seconds apart
	for _, c := range []struct {
		name, answer string
		want         error // if it always comes
		says         string
	}{
		{"error of the server", "<Error><Code>InternalError</Code><Message>We encountered an internal error.</Message></Error>",
			source.ErrUnavailable, "InternalError: We encountered"},
		{"busy", "<?xml version='1.0'?>\n<Error><Code>SlowDown</Code></Error>", source.ErrUnavailable, "SlowDown"},
		{"no permission", "<Error><Code>AccessDenied</Code></Error>", fs.ErrPermission, "403 AccessDenied"},
		{"no bucket", "<Error><Code>NoSuchBucket</Code></Error>", fs.ErrNotExist, "check the name of the bucket"},
		{"a page of HTML", "<!DOCTYPE html>\n<html><head><title>Please log in</title></head><body><p>Hello<br></body></html>",
			source.ErrInvalid, "200 with <html> where <ListBucketResult> was asked for"},
		{"another document", "<ListAllMyBucketsResult/>", source.ErrInvalid, "<ListAllMyBucketsResult>"},
		{"JSON", `{"Contents": []}`, source.ErrInvalid, "a text that is no XML"},
		{"text", "It works!", source.ErrInvalid, "a text that is no XML"},
		{"nothing", "", source.ErrUnavailable, "ended before <ListBucketResult>, after 0 bytes"},
		{"white space", "  \n", source.ErrUnavailable, "ended before <ListBucketResult>"},
		{"cut off in the root", "<?xml version='1.0'?><ListBucket", source.ErrUnavailable, "ended before <ListBucketResult>"},
		{"cut off in an object", "<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>data/x</Key><Size>1</Si",
			source.ErrUnavailable, "unexpected EOF"},
		{"truncated without a token", "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>", source.ErrInvalid,
			"should have continuation token"},
		{"the same page again", "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>20</NextContinuationToken>" +
			"</ListBucketResult>", source.ErrInvalid, "its list has no end"},
		{"too long", "<ListBucketResult>" + strings.Repeat(" ", 17<<20), source.ErrInvalid,
			"more than 16777216 bytes"},
		{"other objects", "<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>other/x</Key><Size>1</Size></Contents>" +
			"</ListBucketResult>", source.ErrInvalid, "lists s3://many/other/x among"},
	} {
		for _, credentials := range []string{"environment", "none"} {
			for _, always := range []bool{false, true} {
				tests.Go(func() {
					var spoiled atomic.Bool
					l := &s3test.Lister{Objects: 50, Page: 10, Spoil: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
						if r.URL.Query().Get("continuation-token") != "20" || spoiled.Swap(true) && !always {
							next.ServeHTTP(w, r)
							return
						}
						w.Header().Set("Content-Type", "application/xml")
						_, _ = w.Write([]byte(c.answer))
					}}
					n, err := listed(t, l, map[string]any{"credentials": credentials})
					if !always && errors.Is(c.want, source.ErrUnavailable) {
						if n != 50 || err != nil {
							t.Errorf("%s, credentials %s: after one such answer: %d objects, %v", c.name, credentials, n, err)
						}
					} else if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "s3://many/data/") {
						t.Errorf("%s, credentials %s: %d objects, %v; want %v with %q", c.name, credentials, n, err, c.want, c.says)
					}
				})
				if !errors.Is(c.want, source.ErrUnavailable) {
					break
				}
			}
		}
	}
	tests.Wait()
}

// Ensure that a list goes on while the server names a next page, with or without IsTruncated, and that a list which goes
// in a circle is an error: of tokens, or of pages under tokens that are always new.
func TestListsWithoutAnEnd(t *testing.T) {
	s3test.Environment(t)
	var requests atomic.Int64
	rewrite := func(from func(token string) string, replace func(body string) string) s3test.Spoil {
		return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if requests.Add(1) > 1000 {
				w.WriteHeader(http.StatusBadRequest)
				return
			}
			q := r.URL.Query()
			q.Set("continuation-token", from(q.Get("continuation-token")))
			r.URL.RawQuery = q.Encode()
			answer := httptest.NewRecorder()
			next.ServeHTTP(answer, r)
			w.Header().Set("Content-Type", "application/xml")
			_, _ = w.Write([]byte(replace(answer.Body.String()))) // the client may be gone
		}
	}
	truncated := regexp.MustCompile("<IsTruncated>[a-z]*</IsTruncated>")
	token := regexp.MustCompile("<NextContinuationToken>[0-9]*</NextContinuationToken>")
	asked, same := "", func(token string) string { return token }
	for _, c := range []struct {
		name  string
		spoil s3test.Spoil
		ends  bool
	}{
		{"no IsTruncated", rewrite(same, func(body string) string { return truncated.ReplaceAllString(body, "") }), true},
		{"the last token again", rewrite(func(token string) string { asked = token; return token }, func(body string) string {
			if token.MatchString(body) {
				return body
			}
			return strings.Replace(body, "<Contents>", "<NextContinuationToken>"+asked+"</NextContinuationToken><Contents>", 1)
		}), true},
		{"a circle of three pages", rewrite(same, func(body string) string {
			return strings.Replace(body, "Token>40<", "Token>10<", 1)
		}), false},
		{"new tokens for one page", rewrite(func(string) string { return "" }, func(body string) string {
			return strings.Replace(body, "Token>10<", fmt.Sprintf("Token>new-%d<", requests.Load()), 1)
		}), false},
	} {
		requests.Store(0)
		n, err := listed(t, &s3test.Lister{Objects: 50, Page: 10, Spoil: c.spoil}, nil)
		if c.ends && (n != 50 || err != nil) {
			t.Errorf("%s: %d objects, %v", c.name, n, err)
		} else if !c.ends && (!errors.Is(err, source.ErrInvalid) || !strings.Contains(err.Error(), "its list has no end") || requests.Load() > 20) {
			t.Errorf("%s: %d objects after %d requests, %v", c.name, n, requests.Load(), err)
		}
	}
}

// Ensure that a list whose pages have no objects, under tokens that are always new, is an error with their number. Some
// storage answers a few such pages.
func TestPagesWithoutObjects(t *testing.T) {
	s3test.Environment(t)
	for _, ends := range []bool{true, false} {
		var requests atomic.Int64
		n, err := listed(t, &s3test.Lister{Objects: 20, Page: 10, Spoil: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			k := requests.Add(1)
			if !ends && k <= 2000 || k%2 == 0 && k < 1000 {
				fmt.Fprintf(w, "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>%s-%d</NextContinuationToken>"+
					"</ListBucketResult>", strings.SplitN(r.URL.Query().Get("continuation-token"), "-", 2)[0], k)
				return
			}
			q := r.URL.Query()
			q.Set("continuation-token", strings.SplitN(q.Get("continuation-token"), "-", 2)[0])
			r.URL.RawQuery = q.Encode()
			next.ServeHTTP(w, r)
		}}, nil)
		if ends && (n != 20 || err != nil) {
			t.Errorf("%d objects, %v", n, err)
		} else if !ends && (!errors.Is(err, source.ErrInvalid) || !strings.Contains(err.Error(), "1000 pages") || requests.Load() != 1000) {
			t.Errorf("%d objects after %d requests, %v", n, requests.Load(), err)
		}
	}
}

// Ensure that a note counts the objects with data whose names end in a slash: they are left out.
func TestNamesThatEndInASlash(t *testing.T) {
	s3test.Environment(t)
	l := &s3test.Lister{Objects: 9, Key: func(i int) string { return fmt.Sprintf("data/%d.jpg%s", i, strings.Repeat("/", i%3/2)) }}
	server := httptest.NewServer(l)
	defer server.Close()
	for glob, want := range map[string]string{"**/*.jpg": "3, the first is 2.jpg/ (a name that ends in / and has data)", "**/[0134]*": ""} {
		s := opened(t, source.Settings{"kind": "dir", "path": "s3://many/data", "glob": glob,
			"remote": map[string]any{"endpoint": server.URL}})
		expect.Equal(t, sourcetest.Note(s, "skipped"), want, "%s: the note", glob)
	}
}

// Ensure that a key which is not UTF-8 is refused, and never read as the key that U+FFFD makes of it.
func TestKeysThatAreNotUTF8(t *testing.T) {
	s3test.Environment(t)
	keys := []string{"data/\xff.bin", "data/\ufffd.bin"}
	l := &s3test.Lister{Objects: 2, Key: func(i int) string { return keys[i] }}
	l.Spoil = func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		i := slices.Index(keys, strings.TrimPrefix(r.URL.Path, "/many/"))
		if i < 0 {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("ETag", fmt.Sprintf("\"%032x\"", i))
		w.Header().Set("Content-Type", "binary/octet-stream")
		http.ServeContent(w, r, "", time.Unix(1, 0), bytes.NewReader(bytes.Repeat([]byte{byte(i)}, 100_000+i)))
	}
	server := httptest.NewServer(l)
	defer server.Close()
	for _, credentials := range []string{"environment", "none"} {
		s := opened(t, source.Settings{"kind": "dir", "path": "s3://many/data",
			"remote": map[string]any{"endpoint": server.URL, "credentials": credentials}})
		for i := range s.Info().Samples {
			key := strings.TrimPrefix(s.Where(i), "s3://many/")
			got := make([]byte, 200_000)
			n, err := s.Read(t.Context(), i, got)
			if key == keys[0] {
				if !errors.Is(err, source.ErrInvalid) || !strings.Contains(err.Error(), "non UTF-8") {
					t.Errorf("%s, %q: %v", credentials, key, err)
				}
			} else if want := slices.Index(keys, key); err != nil || n != 100_000+want || got[0] != byte(want) {
				t.Errorf("%s, %q: %d bytes of %d, %v", credentials, key, n, got[0], err)
			}
		}
	}
}

// Ensure that a page of a list is tried again alone, as often as any request that opens a source.
func TestPagesAreTriedAlone(t *testing.T) {
	s3test.Environment(t)
	var requests atomic.Int64
	l := &s3test.Lister{Objects: 1000, Page: 10, Spoil: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if requests.Add(1)%12 == 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		next.ServeHTTP(w, r)
	}}
	n, err := listed(t, l, nil)
	if pages := l.Listed.Load(); n != 1000 || err != nil || pages != 100 || requests.Load() != 109 {
		t.Errorf("%d objects in %d pages and %d requests, %v", n, pages, requests.Load(), err)
	}
}

// Ensure that a page of a list for which no byte comes is asked for again.
func TestPageThatHangs(t *testing.T) {
	s3test.Environment(t)
	var hung atomic.Bool
	l := &s3test.Lister{Objects: 50, Page: 10, Spoil: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.URL.Query().Get("continuation-token") == "20" && !hung.Swap(true) {
			<-r.Context().Done()
			return
		}
		next.ServeHTTP(w, r)
	}}
	expect.Gives(listed(t, l, map[string]any{"stall": "300ms"}))(t, 50)
}

// Ensure that a page of a list may take longer than stall, if its bytes come.
func TestPageThatComesSlowly(t *testing.T) {
	s3test.Environment(t)
	l := &s3test.Lister{Objects: 50, Page: 50, Spoil: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		answer := httptest.NewRecorder()
		next.ServeHTTP(answer, r)
		body := answer.Body.Bytes()
		for part := range slices.Chunk(body, len(body)/6) {
			_, _ = w.Write(part) // the client may be gone
			_ = http.NewResponseController(w).Flush()
			time.Sleep(500 * time.Millisecond)
		}
	}}
	n, err := listed(t, l, map[string]any{"stall": "2s"})
	if n != 50 || err != nil || l.Listed.Load() != 1 {
		t.Errorf("%d objects in %d pages, %v", n, l.Listed.Load(), err)
	}
}

// Ensure that objects are read from a server that does not answer HEAD as it should, such as one for a presigned
// address: the answer to a request for the first byte has their state. Empty objects too.
func TestServersWithoutHead(t *testing.T) {
	s := newStorage(t)
	s.Put(t, "d/0", []byte("0123456789"))
	put := fatal.Value(http.NewRequestWithContext(t.Context(), http.MethodPut, s.URL+"/photos/d/1", http.NoBody))(t)
	if a, err := http.DefaultClient.Do(put); err != nil || a.Body.Close() != nil || a.StatusCode != http.StatusOK { // minio-go sends no length of 0
		t.Fatal(a, err)
	}
	manifest := t.TempDir() + "/manifest"
	write(t, manifest, []byte("0\n1\n"))
	refuse := func(status int) s3test.Spoil {
		return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { w.WriteHeader(status) }
	}
	for name, head := range map[string]s3test.Spoil{
		"400": refuse(400), "401": refuse(401), "403": refuse(403), "404": refuse(404), "405": refuse(405), "501": refuse(501),
		"no length": func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			w.Header().Set("Transfer-Encoding", "chunked")
			w.WriteHeader(http.StatusOK)
		},
		"a length of 0": refuse(200),
	} {
		for path, remote := range map[string]map[string]any{
			"s3://photos/d":     {"endpoint": s.URL},
			"s3://photos/d/":    {"endpoint": s.URL, "credentials": "none"},
			s.URL + "/photos/d": {},
		} {
			t.Run(name+" from "+path, func(t *testing.T) {
				var heads atomic.Int64
				s.Spoil(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
					if r.Method == http.MethodHead {
						heads.Add(1)
						head(w, r, next)
						return
					}
					next.ServeHTTP(w, r)
				})
				src := opened(t, source.Settings{"kind": "dir", "path": path, "remote": remote, "manifest": manifest})
				for i, want := range []string{"0123456789", ""} {
					got := make([]byte, 20)
					if n, err := src.Read(t.Context(), i, got); err != nil || string(got[:n]) != want {
						t.Errorf("sample %d: %q, %v", i, got[:n], err)
					}
				}
				if heads.Load() == 0 {
					t.Error("no HEAD was sent")
				}
			})
		}
	}
	s.Spoil(nil)
	expect.Fails(first(t, s.URL+"/photos/none", nil))(t, fs.ErrNotExist)
}

// Ensure that bytes in an encoding that no request has asked for are an error that names it: in samples, at the
// opening, in lists. Each request asks for none.
func TestEncodedAnswers(t *testing.T) {
	s := newStorage(t)
	text := bytes.Repeat([]byte("0123456789"), 1000)
	s.Put(t, "d/records", text)
	var asked atomic.Int64
	for _, coding := range []string{"gzip", "x-gzip", "br", "aws-chunked, gzip", "identity", "aws-chunked"} {
		plain := strings.TrimPrefix(coding, "aws-chunked") == "" || coding == "identity"
		spoil := func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if r.Header.Get("Accept-Encoding") != "identity" {
				asked.Add(1)
			}
			answer := httptest.NewRecorder()
			next.ServeHTTP(answer, r)
			body := answer.Body.Bytes()
			maps.Copy(w.Header(), answer.Header())
			w.Header().Set("Content-Encoding", coding)
			if strings.HasSuffix(coding, "gzip") && r.Method == http.MethodGet {
				var b bytes.Buffer
				z := gzip.NewWriter(&b)
				_, _ = z.Write(body) // a Buffer takes all
				z.Close()
				body = b.Bytes()
				w.Header().Set("Content-Length", fmt.Sprint(len(body)))
			}
			w.WriteHeader(answer.Code)
			_, _ = w.Write(body)
		}
		for _, c := range []struct {
			path   string
			remote map[string]any
		}{
			{"s3://photos/d", map[string]any{"endpoint": s.URL}},
			{"s3://photos/d", map[string]any{"endpoint": s.URL, "credentials": "none"}},
			{"s3://photos/d/records", map[string]any{"endpoint": s.URL}},
			{"s3://photos/d/records", map[string]any{"endpoint": s.URL, "credentials": "none"}},
			{s.URL + "/photos/d/records", map[string]any{}},
		} {
			settings := source.Settings{"kind": "raw", "path": c.path, "sample_bytes": 10, "remote": c.remote}
			if !strings.HasSuffix(c.path, "records") {
				settings = source.Settings{"kind": "dir", "path": c.path, "remote": c.remote}
			}
			check := func(when string, err error) {
				t.Helper()
				if plain != (err == nil) || !plain && (!errors.Is(err, source.ErrInvalid) || !strings.Contains(err.Error(), "Content-Encoding") ||
					!strings.Contains(err.Error(), c.path)) {
					t.Errorf("%s, %s, %v, %s: %v", coding, c.path, c.remote, when, err)
				}
			}
			s.Spoil(nil)
			src, err := kinds.Open(t.Context(), settings)
			fatal.If(t, err)
			s.Spoil(spoil)
			_, err = src.Read(t.Context(), 0, make([]byte, 20_000))
			check("a sample", err)
			src.Close()
			if src, err = kinds.Open(t.Context(), settings); err == nil {
				src.Close()
			}
			check("opened", err)
		}
	}
	if n := asked.Load(); n > 0 {
		t.Errorf("%d requests permit an encoding", n)
	}
}

// Ensure that the Last-Modified of objects without an ETag tells a change that keeps the size: of files that are listed,
// and of a shard with a kept index. Objects without both are noted.
func TestBucketsWithoutETags(t *testing.T) {
	for _, credentials := range []string{"environment", "none"} {
		for _, dated := range []bool{true, false} {
			if !dated && credentials == "none" {
				continue // minio-go refuses such objects
			}
			t.Run(fmt.Sprintf("credentials %s, dated %v", credentials, dated), func(t *testing.T) {
				s := newStorage(t)
				date := atomic.Pointer[string]{}
				s.Spoil(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
					answer := httptest.NewRecorder()
					next.ServeHTTP(answer, r)
					body := answer.Body.String()
					maps.Copy(w.Header(), answer.Header())
					w.Header().Del("ETag")
					w.Header().Del("Last-Modified")
					listing := r.URL.Query().Has("list-type")
					if listing {
						body = betweenTags.ReplaceAllString(body, "")
						w.Header().Del("Content-Length")
					}
					if now := date.Load(); dated && listing {
						body = strings.ReplaceAll(body, "<Size>", "<LastModified>2026-01-01T00:00:"+*now+".999Z</LastModified><Size>")
					} else if dated {
						w.Header().Set("Last-Modified", "Thu, 01 Jan 2026 00:00:"+*now+" GMT")
					}
					w.WriteHeader(answer.Code)
					_, _ = w.Write([]byte(body))
				})
				for _, kind := range []string{"tar", "dir"} {
					first, second := "01", "02"
					date.Store(&first)
					path := "s3://photos/" + kind
					put := func(label byte) {
						if kind == "dir" {
							s.Put(t, "dir/x", []byte{label})
						} else {
							s.Put(t, "tar", twoMembers(label))
						}
					}
					put('3')
					open := func() (source.Source, error) {
						return kinds.Open(t.Context(), source.Settings{"kind": kind, "path": path,
							"remote": map[string]any{"endpoint": s.URL, "credentials": credentials}})
					}
					old := fatal.Value(open())(t)
					defer old.Close()
					noted := slices.ContainsFunc(old.Info().Notes, func(n source.Note) bool { return n.Name == "changes unnoticed" })
					if noted == dated {
						t.Errorf("%s: the notes are %+v", kind, old.Info().Notes)
					}
					put('7')
					date.Store(&second)
					if _, err := old.Read(t.Context(), 0, make([]byte, 1000)); dated && !errors.Is(err, source.ErrChanged) {
						t.Errorf("%s: a changed object: %v", kind, err)
					}
					again := fatal.Value(open())(t)
					defer again.Close()
					if dated && again.Info().Fingerprint == old.Info().Fingerprint {
						t.Errorf("%s: a changed object has the same fingerprint", kind)
					}
					want := map[string]int{"dir": 1, "tar": 700}[kind]
					got := make([]byte, 1000)
					if n, err := again.Read(t.Context(), 0, got); err != nil || n != want || strings.Trim(string(got[:n]), "7") != "" {
						t.Errorf("%s: %d bytes, %.20q, %v", kind, n, got, err)
					}
				}
			})
		}
	}
}

// betweenTags finds what a list says about the state of an object.
var betweenTags = regexp.MustCompile(`<ETag>[^<]*</ETag>|<LastModified>[^<]*</LastModified>`)

// twoMembers makes a shard of samples of 10 and 700 bytes, or with 7 as their bytes, of 700 and 10: so the size of the
// shard stays.
func twoMembers(bytesOf byte) []byte {
	sizes := []int{10, 700}
	if bytesOf == '7' {
		slices.Reverse(sizes)
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for k, n := range sizes {
		_ = w.WriteHeader(&tar.Header{Name: fmt.Sprintf("%d.bin", k), Size: int64(n), Mode: 0o600}) // a Buffer takes all
		_, _ = w.Write(bytes.Repeat([]byte{bytesOf}, n))
	}
	w.Close()
	return b.Bytes()
}
