// Package config reads what a server is to do: a YAML file, and the environment over it. config.example.yaml is the manual of its keys.
package config

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/size"
	"github.com/stocached/stocached/server"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"

	"github.com/go-viper/mapstructure/v2"
	"github.com/spf13/viper"
)

// Config is a configuration as it is in force.
type Config struct {
	Caches  []Cache `key:"caches"`
	Sockets Sockets `key:"sockets"`
	Metrics Metrics `key:"metrics"`
	Log     Log     `key:"log"`

	path string
	from map[string]string // of each scalar key: default, file or the variable's name
}

// Cache is one cache of the server.
type Cache struct {
	Name     string         `key:"name"`
	Source   map[string]any `key:"source"`
	Decode   map[string]any `key:"decode"`
	Size     Size           `key:"size"`
	Assign   string         `key:"assign"`
	Parallel int            `key:"parallel"`
	Dir      string         `key:"dir"`
}

// Size is a number of bytes; 0 is "all": room for every sample.
type Size uint64

// Sockets say where clients find the server.
type Sockets struct {
	Dir string `key:"dir"`
}

// Metrics say where they are answered besides the admin socket.
type Metrics struct {
	Listen string `key:"listen"`
}

// Log says how the server tells what it does.
type Log struct {
	Format string `key:"format"`
	Level  string `key:"level"`
}

// defaults of all scalar keys. A key that is not here has none.
var defaults = map[string]any{"sockets.dir": "", "metrics.listen": "", "log.format": "text", "log.level": "info"}

// variable returns the name of the environment variable of a scalar key.
func variable(key string) string {
	return "STOCACHED_" + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
}

// ErrInvalid is the error of a configuration that cannot be; the text has the file and every complaint, a line each.
var ErrInvalid = errors.New("invalid configuration")

// Load reads a file and the environment. Relative paths of sources are relative to the folder of the file. ErrInvalid, and errors of reading the file.
func Load(path string) (*Config, error) {
	v := viper.New()
	v.SetConfigFile(path)
	v.SetConfigType("yaml")
	if err := v.ReadInConfig(); err != nil {
		var parse viper.ConfigParseError
		if errors.As(err, &parse) {
			return nil, fmt.Errorf("%w: %s: %w", ErrInvalid, path, errors.Unwrap(parse))
		}
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	c := &Config{path: path, from: map[string]string{}}
	for key, value := range defaults {
		c.from[key] = "default"
		if v.InConfig(key) || v.IsSet(key) {
			c.from[key] = "file"
		}
		v.SetDefault(key, value)
		if name := variable(key); os.Getenv(name) != "" {
			c.from[key] = name
			v.Set(key, os.Getenv(name))
		}
	}
	var complaints []string
	if err := v.Unmarshal(c, strict); err != nil {
		complaints = append(complaints, explain(err)...)
	} else {
		complaints = c.check()
	}
	if len(complaints) > 0 {
		slices.Sort(complaints)
		return nil, fmt.Errorf("%w: %s:\n  %s", ErrInvalid, path, strings.Join(complaints, "\n  "))
	}
	return c, nil
}

func strict(d *mapstructure.DecoderConfig) {
	d.TagName, d.ErrorUnused, d.WeaklyTypedInput = "key", true, false
	d.MatchName = func(key, field string) bool { return key == field }
	d.DecodeHook = readSize
}

// readSize reads sizes: numbers, texts with a unit, "all".
func readSize(from, to reflect.Type, value any) (any, error) {
	if to != reflect.TypeFor[Size]() {
		return value, nil
	}
	switch value := value.(type) {
	case string:
		if value == "all" {
			return Size(0), nil
		}
		n, err := size.Parse(value)
		if err == nil && n == 0 {
			err = errors.New("a size of 0; write all for room for every sample")
		}
		return Size(n), err
	case int:
		if value < 1 {
			return nil, fmt.Errorf("a size of %d bytes; write all for room for every sample", value)
		}
		return Size(value), nil
	}
	return nil, fmt.Errorf("%v is no size, such as 8GiB or all", value)
}

// explain makes lines of what the decoder complains about.
func explain(err error) (lines []string) {
	for _, line := range strings.Split(err.Error(), "\n") {
		line = strings.TrimPrefix(strings.TrimSpace(line), "* ")
		if line == "" || strings.HasPrefix(line, "decoding failed") {
			continue
		}
		if where, keys, ok := strings.Cut(line, " has invalid keys: "); ok {
			where = strings.Trim(where, "'")
			if where != "" {
				where += "."
			}
			for _, key := range strings.Split(keys, ", ") {
				lines = append(lines, fmt.Sprintf("%s%s: there is no such key", where, key))
			}
			continue
		}
		lines = append(lines, line)
	}
	return lines
}

// check says what is wrong with values that have the right types.
func (c *Config) check() (complaints []string) {
	complain := func(format string, a ...any) { complaints = append(complaints, fmt.Sprintf(format, a...)) }
	if len(c.Caches) == 0 {
		complain("caches: there is none; a server needs one at least")
	}
	names := map[string]int{}
	for k := range c.Caches {
		one := &c.Caches[k]
		where := fmt.Sprintf("caches[%d]", k)
		if err := shm.CheckName(one.Name); err != nil {
			complain("%s.name: %v", where, err)
		} else if other, twice := names[one.Name]; twice {
			complain("%s.name: %s is the name of caches[%d] already", where, one.Name, other)
		}
		names[one.Name] = k
		if len(one.Source) == 0 {
			complain("%s.source: a cache of a server needs one, such as {kind: dir, path: ./pictures}", where)
		}
		if one.Assign == "" {
			one.Assign = "first-come"
		}
		if _, ok := assigns[one.Assign]; !ok {
			complain("%s.assign: %q is neither first-come nor first-indices", where, one.Assign)
		}
		if one.Parallel < 0 || one.Parallel > shm.ClaimsPerClient {
			complain("%s.parallel: %d reads at a time are not in 1..%d", where, one.Parallel, shm.ClaimsPerClient)
		}
	}
	if c.Metrics.Listen != "" {
		if _, port, err := net.SplitHostPort(c.Metrics.Listen); err != nil || port == "" {
			complain("metrics.listen: %q is not host:port, such as 127.0.0.1:9200", c.Metrics.Listen)
		}
	}
	if !slices.Contains([]string{"text", "json"}, c.Log.Format) {
		complain("log.format: %q is neither text nor json", c.Log.Format)
	}
	if err := new(slog.Level).UnmarshalText([]byte(c.Log.Level)); err != nil {
		complain("log.level: %q is none of debug, info, warn, error", c.Log.Level)
	}
	return complaints
}

var assigns = map[string]shm.Assign{"first-come": shm.AssignFirstCome, "first-indices": shm.AssignFirstIndices}

// Options are what package server takes.
func (c *Config) Options(log *slog.Logger) server.Options {
	o := server.Options{SocketsDir: c.SocketsDir(), MetricsListen: c.Metrics.Listen, Log: log}
	for _, one := range c.Caches {
		settings := source.Settings{}
		for key, value := range one.Source {
			settings[key] = c.resolve(key, value)
		}
		o.Caches = append(o.Caches, server.CacheOptions{Name: one.Name, Source: settings, Decode: one.Decode, Size: uint64(one.Size), Assign: assigns[one.Assign], Parallel: one.Parallel, Dir: one.Dir})
	}
	return o
}

// resolve makes the paths of a source, and of the index that it keeps, relative to the folder of the file.
func (c *Config) resolve(key string, value any) any {
	path, ok := value.(string)
	if ok && (key == "path" || key == "index" && path != "none") && path != "" && !filepath.IsAbs(path) {
		return filepath.Join(filepath.Dir(c.path), path)
	}
	return value
}

// SocketsDir is the folder of the sockets.
func (c *Config) SocketsDir() string {
	if c.Sockets.Dir == "" {
		return control.SocketsDir()
	}
	return c.Sockets.Dir
}

// Setting is a scalar key as it is in force.
type Setting struct{ Key, Value, From string }

// Settings lists the scalar keys, sorted, each with where its value comes from: default, file, or an environment variable.
func (c *Config) Settings() []Setting {
	values := map[string]string{"sockets.dir": c.SocketsDir(), "metrics.listen": c.Metrics.Listen, "log.format": c.Log.Format, "log.level": c.Log.Level}
	var all []Setting
	for key, value := range values {
		all = append(all, Setting{key, value, c.from[key]})
	}
	slices.SortFunc(all, func(a, b Setting) int { return strings.Compare(a.Key, b.Key) })
	return all
}

// Logger makes the logger that the configuration asks for.
func (c *Config) Logger(to *os.File) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.Log.Level)); err != nil {
		panic(err) // Load has checked it
	}
	o := &slog.HandlerOptions{Level: level}
	if c.Log.Format == "json" {
		return slog.New(slog.NewJSONHandler(to, o))
	}
	return slog.New(slog.NewTextHandler(to, o))
}
