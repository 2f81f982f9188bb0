package kinds_test

import (
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/kinds"
	"github.com/stocached/stocached/source/s3/s3test"
	"github.com/stocached/stocached/source/sourcetest"
)

var listedObject = regexp.MustCompile(`(?s)<Contents>.*?</Contents>`)

// backwards has each page of a list name its objects from the last one to the first.
func backwards(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if !r.URL.Query().Has("list-type") {
		next.ServeHTTP(w, r)
		return
	}
	answer := httptest.NewRecorder()
	next.ServeHTTP(answer, r)
	objects := listedObject.FindAllString(answer.Body.String(), -1)
	maps.Copy(w.Header(), answer.Header())
	w.WriteHeader(answer.Code)
	_, _ = w.Write([]byte(listedObject.ReplaceAllStringFunc(answer.Body.String(), func(string) (last string) {
		last, objects = objects[len(objects)-1], objects[:len(objects)-1]
		return last
	})))
}

// Ensure that all ways to use a list find all objects in the byte order of their names, whatever the order of the
// list: shards of a pattern, files, classes of a manifest, by both schemes.
func TestListsInAnyOrder(t *testing.T) {
	s3test.Environment(t)
	s := s3test.Fake(t)
	var shards, files []string
	for _, k := range []string{"000", "001", "002", "003"} {
		s.Put(t, "train-"+k+".tar", shardOf(t, [][]byte{[]byte("sample " + k)}, 0))
		shards = append(shards, "sample "+k)
	}
	for _, name := range []string{"a/1.bin", "a/2.bin", "a-b/1.bin", "a.x/1.bin", "b/1.bin"} {
		s.Put(t, "d/"+name, []byte(name))
		files = append(files, name)
	}
	slices.Sort(files)
	s.Spoil(backwards)
	for _, scheme := range []string{"s3", "gs"} {
		for name, c := range map[string]struct {
			settings source.Settings
			want     []string
		}{
			"shards":              {source.Settings{"kind": "tar", "path": "/train-*.tar", "fields": []any{"jpg"}}, shards},
			"files":               {source.Settings{"kind": "dir", "path": "/d"}, files},
			"files by a glob":     {source.Settings{"kind": "dir", "path": "/d", "glob": "a*/*.bin"}, files[:4]},
			"files with labels":   {source.Settings{"kind": "dir", "path": "/d", "labels": "folders"}, files},
			"classes of the list": {source.Settings{"kind": "dir", "path": "/d", "labels": "folders", "manifest": manifestOf(t, files)}, files},
		} {
			settings := mergedWith(mergedWith(c.settings, "path", scheme+"://"+bucket+c.settings["path"].(string)), "remote",
				map[string]any{"endpoint": s.URL})
			src := opened(t, settings)
			var got []string
			for i := range src.Info().Samples {
				sample := make([]byte, 4096)
				n, err := src.Read(t.Context(), i, sample)
				if err != nil {
					t.Fatal(name, err)
				}
				if settings["labels"] != nil && strings.Contains(string(sample[:n]), files[i]) { // with a label
					got = append(got, files[i])
					continue
				}
				got = append(got, string(sample[:n]))
			}
			expect.Slice(t, got, c.want, "%v", name)
			if settings["labels"] != nil && sourcetest.Note(src, "classes") != `["a","a-b","a.x","b"]` {
				t.Errorf("%s: the notes are %+v", name, src.Info().Notes)
			}
		}
	}
	_, err := kinds.Open(t.Context(), source.Settings{"kind": "tar", "path": "s3://" + bucket + "/none-*.tar",
		"remote": map[string]any{"endpoint": s.URL}})
	if !errors.Is(err, source.ErrInvalid) || !strings.Contains(err.Error(), "no object matches") {
		t.Errorf("a pattern that matches nothing: %v", err)
	}
}

// Ensure that an object is read by a presigned address, which permits GET alone.
func TestPresignedAddress(t *testing.T) {
	for name, start := range s3test.Servers(t) {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			s.Put(t, "records", []byte("0123456789abcdefghij"))
			address := fatal.Value(s.Client.PresignedGetObject(t.Context(), bucket, "records", time.Hour, nil))(t)
			src := opened(t, source.Settings{"kind": "raw", "path": address.String(), "sample_bytes": 10})
			readAll(t, src, [][]byte{[]byte("0123456789"), []byte("abcdefghij")})
		})
	}
}
