package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/stocached/stocached/server"
	"github.com/stocached/stocached/shm"
)

// leftFile is the file beside the sockets in which a server notes its caches for the next server of the same
// configuration file. So a cache that leaves the file while no server runs is removed as by a reload.
const leftFile = "caches.json"

// servedNote is the content of leftFile.
type servedNote struct {
	Config string   `json:"config"` // the path of the configuration
	Paths  []string `json:"paths"`  // paths of the segments
}

// removeLeft removes the caches of an earlier server that the configuration no longer names, unless a process uses them,
// and notes the caches of this one.
func removeLeft(sockets, configuration string, caches []server.CacheOptions, log *slog.Logger) {
	file := filepath.Join(sockets, leftFile)
	note := servedNote{}
	if path, err := filepath.Abs(configuration); err == nil {
		note.Config = path
	}
	for _, c := range caches {
		if !c.Unnamed {
			note.Paths = append(note.Paths, filepath.Join(cmp.Or(c.Dir, shm.DefaultDir()), c.Name))
		}
	}
	var before servedNote
	if text, err := os.ReadFile(file); err == nil && json.Unmarshal(text, &before) == nil && before.Config == note.Config {
		for _, path := range before.Paths {
			if !slices.Contains(note.Paths, path) && !removeOne(path, log) {
				note.Paths = append(note.Paths, path) // for the next start or reload
			}
		}
	}
	text, err := json.Marshal(note)
	if err == nil {
		err = os.WriteFile(file+".new", text, 0o600)
	}
	if err == nil {
		err = os.Rename(file+".new", file)
	}
	if err != nil {
		log.Warn("the caches are not noted for the next server", "error", err)
	}
}

// removeOne removes a segment that no process uses. false: a process does.
func removeOne(path string, log *slog.Logger) bool {
	l, err := shm.LookAt(path)
	removed := false
	if err == nil {
		removed, err = shm.RemoveUnused(&l)
	}
	switch {
	case errors.Is(err, shm.ErrNotFound):
	case err != nil:
		log.Warn("a cache that left the configuration stays", "segment", path, "error", err)
	case !removed:
		log.Warn("a cache that left the configuration stays: processes use it", "segment", path)
		return false
	default:
		log.Info("removed a cache that left the configuration", "segment", path)
	}
	return true
}
