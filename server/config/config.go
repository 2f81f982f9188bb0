// Package config reads the configuration of a server: a YAML file, and the environment, which
// overrides it. config.example.yaml is the manual of its keys.
package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/size"
	"github.com/stocached/stocached/server"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/tier"

	"github.com/go-viper/mapstructure/v2"
	"github.com/spf13/viper"
)

// Config is a configuration in force.
type Config struct {
	Caches  []Cache  `key:"caches"`
	Limits  Limits   `key:"limits"`
	Sockets Sockets  `key:"sockets"`
	Admin   Admin    `key:"admin"`
	Metrics Listener `key:"metrics"`
	Web     Listener `key:"web"`
	Log     Log      `key:"log"`

	path  string
	given []any             // the caches as the file has them
	from  map[string]string // origin of each scalar key: default, file, or the name of the variable
}

// Cache is one cache of the server.
type Cache struct {
	Name     string           `key:"name"`
	Source   map[string]any   `key:"source"`
	Decode   map[string]any   `key:"decode"`
	Tiers    []map[string]any `key:"tiers"`
	Size     Size             `key:"size"`
	Policy   string           `key:"policy"`
	Side     *Side            `key:"side_buffer"` // nil: the default
	Parallel int              `key:"parallel"`    // 0: the default
	Dir      string           `key:"dir"`
	Unnamed  bool             `key:"unnamed"`

	ReadTimeout  time.Duration `key:"read_timeout"`
	RemoveUnused time.Duration `key:"remove_unused"`
}

// Size is a number of bytes; 0 is "all": capacity for every sample.
type Size uint64

// Limits bound all caches together, and the memory of clients.
type Limits struct {
	Total   Bound  `key:"total"`
	Clients Amount `key:"clients"`
}

// Bound is a number of bytes; 0 is "none".
type Bound uint64

// Side is the size of a side buffer in bytes; 0 is "none".
type Side uint64

// Amount is a number of bytes that is not 0.
type Amount uint64

// Admin says who may use the admin socket, and for what.
type Admin struct {
	Group string `key:"group"`
	Pprof bool   `key:"pprof"`
}

// Sockets say where clients find the server.
type Sockets struct {
	Dir string `key:"dir"`
}

// Listener says where else than on the admin socket the server answers, for metrics or with its page.
type Listener struct {
	Listen string `key:"listen"`
}

// Log says how the server logs.
type Log struct {
	Format string `key:"format"`
	Level  string `key:"level"`
}

// defaults of all scalar keys. A key that is not listed has none.
var defaults = map[string]any{"limits.total": "none", "limits.clients": "512MiB", "admin.group": "",
	"admin.pprof": false, "sockets.dir": "", "metrics.listen": "", "web.listen": "", "log.format": "text", "log.level": "info"}

// variable returns the name of the environment variable of a scalar key.
func variable(key string) string {
	return "STOCACHED_" + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
}

// ErrInvalid is the error of an invalid configuration. Its text has the file and all complaints,
// one a line.
var ErrInvalid = errors.New("invalid configuration")

// Load reads a file and the environment. The environment wins, except over the folder of the sockets:
// STOCACHED_SOCKETS_DIR tells clients where to look, and a shell may have it for another server. Relative paths start at
// the folder of the file.
// Errors: ErrInvalid, errors of reading the file.
func Load(path string) (*Config, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	v := viper.New()
	v.SetConfigType("yaml")
	if err := v.ReadConfig(bytes.NewReader(text)); err != nil {
		if parse := (viper.ConfigParseError{}); errors.As(err, &parse) {
			err = errors.Unwrap(parse)
		}
		return nil, fmt.Errorf("%w: %s: %s", ErrInvalid, path, syntax(err))
	}
	c := &Config{path: path, from: map[string]string{}}
	for key, value := range defaults {
		c.from[key] = "default"
		if v.InConfig(key) || v.IsSet(key) {
			c.from[key] = "file"
		}
		v.SetDefault(key, value)
		if name := variable(key); os.Getenv(name) != "" && !(name == control.SocketsVariable && c.from[key] == "file") {
			c.from[key] = name
			v.Set(key, os.Getenv(name))
		}
	}
	c.given, _ = v.Get("caches").([]any)
	all := append(checkKeys(text), complaints(v.Unmarshal(c, strict), c.check)...)
	slices.Sort(all)
	if complaints := slices.Compact(all); len(complaints) > 0 {
		return nil, fmt.Errorf("%w: %s:\n  %s", ErrInvalid, path, strings.Join(complaints, "\n  "))
	}
	return c, nil
}

// noKeys matches the error of the YAML reader for a file that is a list or a value.
var noKeys = regexp.MustCompile(`cannot unmarshal !!\w+.* into .*`)

// syntax says why a file is not YAML with keys.
func syntax(err error) string {
	text := strings.Join(strings.Fields(strings.NewReplacer("yaml: ", "", "unmarshal errors:",
		"").Replace(err.Error())), " ")
	return "not YAML with keys: " + noKeys.ReplaceAllString(text, "expected keys with values")
}

// complaints returns those about the types of values, or, if there are none, those of check about
// the values; sorted.
func complaints(decoding error, check func() []string) []string {
	var all []string
	if decoding != nil {
		all = source.Complaints(decoding)
	} else {
		all = check()
	}
	slices.Sort(all)
	return all
}

// strict leaves unknown keys to checkKeys, which reports them as the file has them.
func strict(d *mapstructure.DecoderConfig) {
	source.Strictly(d, readBytes, source.Exact, refuseZero, readBool)
}

// readBytes reads sizes and bounds: numbers, texts with a unit, and the word that stands for 0.
func readBytes(from, to reflect.Type, value any) (any, error) {
	word, refusal := "none", "a size of 0; write "
	switch to {
	case reflect.TypeFor[Size]():
		word, refusal = "all", shm.OptionNamed("size").Refuse(0)
	case reflect.TypeFor[Bound]():
		refusal += "none for no bound"
	case reflect.TypeFor[Side]():
		refusal += "none for no side buffer"
	case reflect.TypeFor[Amount]():
		word = ""
		refusal += "512MiB for the default"
	default:
		return value, nil
	}
	text, ok := value.(string)
	if !ok {
		text = source.Show(value)
	}
	if word != "" && text == word {
		return uint64(0), nil
	}
	return size.ParseAbove0(text, refusal)
}

// refuseZero refuses 0 as a number and as a time.
func refuseZero(from, to reflect.Type, value any) (any, error) {
	switch {
	case value == 0 && to.Kind() == reflect.Int:
		return nil, errors.New("0; leave it out for the default")
	case value == time.Duration(0):
		return nil, errors.New("a time of 0; leave it out for the default")
	}
	return value, nil
}

// readBool reads booleans of the environment, where all values are texts.
func readBool(from, to reflect.Type, value any) (any, error) {
	if text, ok := value.(string); ok && to.Kind() == reflect.Bool {
		if text != "true" && text != "false" {
			return nil, fmt.Errorf("%q is neither true nor false", text)
		}
		return text == "true", nil
	}
	return value, nil
}

// check returns complaints about values of the right types.
func (c *Config) check() (complaints []string) {
	complain := func(format string, a ...any) { complaints = append(complaints, fmt.Sprintf(format, a...)) }
	if len(c.Caches) == 0 {
		complain("caches: a server needs at least one cache; to remove the last one, end the server, and run stocached rm")
	}
	names := map[string]int{}
	for k := range c.Caches {
		one := &c.Caches[k]
		where := fmt.Sprintf("caches[%d].", k)
		if other, twice := names[one.Name]; twice {
			complain("%sname: %s is the name of caches[%d] already", where, one.Name, other)
		}
		names[one.Name] = k
		one.Policy = cmp.Or(one.Policy, shm.OptionNamed("policy").Default)
		for _, about := range append(one.check(), c.cacheOptions(one).Complaints()...) {
			complain("%s%s", where, about)
		}
	}
	if c.Limits.Clients < server.MinClientBytes {
		complain("limits.clients: %d bytes are less than 16MiB", c.Limits.Clients)
	}
	if c.Metrics.Listen != "" {
		complaints = append(complaints, CheckListen("metrics.listen", c.Metrics.Listen, "127.0.0.1:9200")...)
	}
	if c.Web.Listen != "" {
		complaints = append(complaints, CheckListen("web.listen", c.Web.Listen, "127.0.0.1:9201")...)
		if c.Web.Listen == c.Metrics.Listen && !strings.HasSuffix(c.Web.Listen, ":0") {
			complain("web.listen: metrics.listen has %s already; take another port", c.Web.Listen)
		}
	}
	if path := filepath.Join(c.SocketsDir(), control.AdminSocket); len(path) > control.MaxSocketPath {
		complain("sockets.dir: the path of a socket has at most %d bytes, %s has %d; use a shorter folder",
			control.MaxSocketPath, path, len(path))
	}
	if !slices.Contains([]string{"text", "json"}, c.Log.Format) {
		complain("log.format: %q is neither text nor json", c.Log.Format)
	}
	if err := new(slog.Level).UnmarshalText([]byte(c.Log.Level)); err != nil {
		complain("log.level: %q is none of debug, info, warn, error", c.Log.Level)
	}
	return complaints
}

// hostName matches the name of a machine.
var hostName = regexp.MustCompile(`^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?$`)

// CheckListen returns complaints about the address of a key or flag, to listen on.
func CheckListen(key, address, example string) (complaints []string) {
	host, port, err := net.SplitHostPort(address)
	if err != nil || port == "" {
		return []string{fmt.Sprintf("%s: %q is not host:port, such as %s", key, address, example)}
	}
	if n, err := strconv.ParseUint(port, 10, 64); err != nil || n > 65535 {
		complaints = append(complaints, fmt.Sprintf("%s: port %q is not in 0..65535", key, port))
	}
	numbers := strings.Trim(host, "0123456789.") == ""
	if _, err := netip.ParseAddr(host); host != "" && err != nil && (numbers || !hostName.MatchString(host)) {
		complaints = append(complaints,
			fmt.Sprintf("%s: %q is neither an address nor a name of this machine", key, host))
	}
	return complaints
}

// check returns complaints about what is in no option of a server.
func (c *Cache) check() (complaints []string) {
	if len(c.Source) == 0 {
		complaints = append(complaints, "source: a cache of a server needs one, such as {kind: dir, path: ./pictures}")
	}
	if _, err := shm.ParsePolicy(c.Policy); err != nil {
		complaints = append(complaints, strings.TrimPrefix(err.Error(), shm.ErrInvalid.Error()+": "))
	}
	if c.Side != nil && c.Policy != shm.PolicyPlanned.String() {
		complaints = append(complaints,
			fmt.Sprintf("side_buffer: only a cache with policy: planned has one; this one has %s", c.Policy))
	}
	return complaints
}

// Options returns the options for package server.
func (c *Config) Options(log *slog.Logger) server.Options {
	o := server.Options{SocketsDir: c.SocketsDir(), MetricsListen: c.Metrics.Listen, Log: log,
		Total: uint64(c.Limits.Total), ClientBytes: uint64(c.Limits.Clients),
		Admin: server.AdminOptions{Group: c.Admin.Group, Pprof: c.Admin.Pprof}}
	for k := range c.Caches {
		o.Caches = append(o.Caches, c.cacheOptions(&c.Caches[k]))
	}
	return o
}

func (c *Config) cacheOptions(one *Cache) server.CacheOptions {
	settings := source.Settings{}
	for key, value := range one.Source {
		if settings[key] = c.resolve(key, value); key == "remote" {
			settings[key] = c.resolveFiles(value, "ca")
		}
	}
	dir, _ := c.resolve("path", one.Dir).(string)
	var tiers []source.Settings
	for _, t := range one.Tiers {
		tiers = append(tiers, c.tier(t))
	}
	policy, _ := shm.ParsePolicy(one.Policy) // check has seen it
	var side *uint64
	if one.Side != nil {
		side = new(uint64(*one.Side))
	}
	return server.CacheOptions{Name: one.Name, Source: settings, Decode: one.Decode, Tiers: tiers, Size: uint64(one.Size),
		Policy: policy, SideBuffer: side, Parallel: one.Parallel, Dir: dir, Unnamed: one.Unnamed,
		ReadTimeout: one.ReadTimeout, RemoveUnused: one.RemoveUnused}
}

// tier returns the settings of a tier: its files relative to the folder of the file, its password hidden.
func (c *Config) tier(from map[string]any) source.Settings {
	settings := source.Settings{}
	for key, value := range from {
		text, isText := value.(string)
		switch {
		case key == "password" && isText:
			value = tier.Secret(text)
		case key == "password_file" || key == "dir":
			value = c.resolve("path", value)
		case key == "tls":
			value = c.resolveFiles(value, "ca", "cert", "key")
		}
		settings[key] = value
	}
	return settings
}

// resolve makes the paths of a source, its manifest and its index relative to the folder of the
// file.
func (c *Config) resolve(key string, value any) any {
	path, ok := value.(string)
	if ok && (key == "path" || key == "manifest" || key == "index" && path != "none" && path != "beside") && path != "" &&
		!filepath.IsAbs(path) && !source.IsRemote(path) {
		return filepath.Join(filepath.Dir(c.path), path)
	}
	return value
}

// resolveFiles makes the files that a mapping names by these keys relative to the folder of the file.
func (c *Config) resolveFiles(value any, keys ...string) any {
	mapping, ok := value.(map[string]any)
	if !ok {
		return value
	}
	files := maps.Clone(mapping)
	for _, key := range keys {
		if file, ok := files[key]; ok {
			files[key] = c.resolve("path", file)
		}
	}
	return files
}

// SocketsDir returns the folder of the sockets: that of the file, else that of the environment, else the default. One of the file is relative to the folder of the file, and one of the
// environment to the working directory, as for clients.
func (c *Config) SocketsDir() string {
	dir := c.Sockets.Dir
	if c.from["sockets.dir"] == "file" {
		dir, _ = c.resolve("path", dir).(string)
	}
	return cmp.Or(dir, control.SocketsDir())
}

// Setting is a key in force.
type Setting struct {
	Key   string `json:"key"`
	Value string `json:"value"`
	From  string `json:"from"`
}

// Settings lists the scalar keys outside of lists, sorted. From says where the value comes from: default, file, or
// an environment variable.
func (c *Config) Settings() []Setting {
	total := "none"
	if c.Limits.Total != 0 {
		total = fmt.Sprint(uint64(c.Limits.Total))
	}
	values := map[string]string{"limits.total": total, "limits.clients": fmt.Sprint(uint64(c.Limits.Clients)),
		"admin.group": c.Admin.Group, "admin.pprof": fmt.Sprint(c.Admin.Pprof), "sockets.dir": c.SocketsDir(),
		"metrics.listen": c.Metrics.Listen, "web.listen": c.Web.Listen,
		"log.format": c.Log.Format, "log.level": c.Log.Level}
	var all []Setting
	for key, value := range values {
		all = append(all, Setting{key, value, c.from[key]})
	}
	slices.SortFunc(all, func(a, b Setting) int { return strings.Compare(a.Key, b.Key) })
	return all
}

// LogLevel returns the lowest level that is logged.
func (c *Config) LogLevel() slog.Level {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.Log.Level)); err != nil {
		panic(err) // Load has checked the level
	}
	return level
}

// Logger makes a logger of the configured format. level may change while the logger is in use.
func (c *Config) Logger(to io.Writer, level slog.Leveler) *slog.Logger {
	o := &slog.HandlerOptions{Level: level}
	if c.Log.Format == "json" {
		return slog.New(slog.NewJSONHandler(to, o))
	}
	return slog.New(slog.NewTextHandler(to, o))
}

// reloaded are the scalar keys that a reload applies. The others need a new server.
var reloaded = []string{"limits.total", "limits.clients", "log.level"}

// NeedsRestart lists the scalar keys that differ in another configuration and that need a new
// server.
func (c *Config) NeedsRestart(other *Config) (keys []string) {
	theirs := other.Settings()
	for k, s := range c.Settings() {
		if !slices.Contains(reloaded, s.Key) && s.Value != theirs[k].Value {
			keys = append(keys, s.Key)
		}
	}
	return keys
}

// After returns the scalar keys in force in a server that began with c, after a reload of another configuration.
func (c *Config) After(other *Config) []Setting {
	all, theirs := c.Settings(), other.Settings()
	for k := range all {
		if slices.Contains(reloaded, all[k].Key) {
			all[k] = theirs[k]
		}
	}
	return all
}
