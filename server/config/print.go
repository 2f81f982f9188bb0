package config

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
	tiers "github.com/stocached/stocached/tier/kinds"
)

// secret matches keys whose values are not shown. A password is accepted in a tier only; elsewhere it is a
// mistake, which is not shown either.
var secret = regexp.MustCompile(`(?i)passw|secret|token`)

// CacheSettings lists the keys of all caches: those of the file, and the defaults of the cache and its tiers.
// Secrets are hidden.
func (c *Config) CacheSettings() []Setting {
	return c.CacheSettingsOf(func(string) *Config { return c })
}

// CacheSettingsOf is CacheSettings, but each cache has the keys of the configuration that of returns for its name. nil:
// the server has left the cache out, and of its keys only the name is listed.
func (c *Config) CacheSettingsOf(of func(name string) *Config) (all []Setting) {
	for k, one := range c.Caches {
		where := fmt.Sprintf("caches[%d]", k)
		theirs := of(one.Name)
		if theirs == nil {
			all = append(all, Setting{where + ".name", one.Name, "file; the server has left it out"})
			continue
		}
		n := slices.IndexFunc(theirs.Caches, func(other Cache) bool { return other.Name == one.Name })
		all = append(all, theirs.cacheSettings(n, where)...)
	}
	return all
}

// cacheSettings lists the keys of cache k. where is the prefix of the keys.
func (c *Config) cacheSettings(k int, where string) (all []Setting) {
	o := c.cacheOptions(&c.Caches[k])
	given, _ := c.given[k].(map[string]any)
	add := func(key string, value string) {
		from := "default"
		if given[key] != nil {
			from = "file"
		}
		all = append(all, Setting{where + "." + key, value, from})
	}
	add("name", o.Name)
	all = append(all, flat(where+".source", "file", o.Source)...)
	all = append(all, flat(where+".decode", "file", o.Decode)...)
	for n, t := range o.Tiers {
		at := fmt.Sprintf("%s.tiers[%d]", where, n)
		all = append(all, flat(at, "file", t)...)
		missing := tiers.Defaults(t)
		maps.DeleteFunc(missing, func(key string, _ any) bool { return t[key] != nil })
		all = append(all, flat(at, "default", missing)...)
	}
	add("size", word(o.Size, "all"))
	add("policy", o.Policy.String())
	if o.SideBuffer != nil {
		add("side_buffer", word(*o.SideBuffer, "none"))
	}
	if err := o.Check(); err == nil { // fills in defaults
		add("parallel", fmt.Sprint(o.Parallel))
		add("read_timeout", o.ReadTimeout.String())
	}
	add("remove_unused", removes(o.RemoveUnused))
	if add("unnamed", fmt.Sprint(o.Unnamed)); !o.Unnamed {
		add("dir", cmp.Or(o.Dir, shm.DefaultDir()))
	}
	return all
}

func word(bytes uint64, zero string) string {
	if bytes == 0 {
		return zero
	}
	return fmt.Sprint(bytes)
}

func removes(after time.Duration) string {
	if after == 0 {
		return "never"
	}
	return after.String()
}

// flat lists the keys of a map and of the maps in it. The kind comes first, then they are sorted.
func flat(where, from string, settings map[string]any) (all []Setting) {
	keys := slices.Sorted(maps.Keys(settings))
	if k := slices.Index(keys, "kind"); k > 0 {
		keys = slices.Insert(slices.Delete(keys, k, k+1), 0, "kind")
	}
	for _, key := range keys {
		at, value := where+"."+key, settings[key]
		if inner, ok := value.(map[string]any); ok && len(inner) > 0 {
			all = append(all, flat(at, from, inner)...)
			continue
		}
		all = append(all, Setting{at, shown(key, value), from})
	}
	return all
}

// shown returns the value of a key as text, without what is secret in it.
func shown(key string, value any) string {
	value = public(key, value)
	if text, ok := value.(string); ok {
		return text
	}
	return source.Show(value)
}

// public returns the value of a key without passwords, and without what is private in addresses.
func public(key string, value any) any {
	if secret.MatchString(key) && key != "password_file" {
		return "(hidden)"
	}
	switch value := value.(type) {
	case string:
		if key == "addresses" { // a password there is a mistake
			value = value[strings.LastIndexByte(value, '@')+1:]
		}
		return source.Public(value)
	case []any:
		all := slices.Clone(value)
		for k := range all {
			all[k] = public(key, all[k])
		}
		return all
	case map[string]any:
		all := maps.Clone(value)
		for key := range all {
			all[key] = public(key, all[key])
		}
		return all
	}
	return value
}
