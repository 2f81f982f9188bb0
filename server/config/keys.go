package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"github.com/stocached/stocached/source/kinds"

	"go.yaml.in/yaml/v3"
)

// checkKeys complains about what the YAML reader would ignore silently: unknown keys, keys in
// capitals, keys that differ only in case, and further documents.
func checkKeys(text []byte) (complaints []string) {
	d := yaml.NewDecoder(bytes.NewReader(text))
	var document yaml.Node
	if err := d.Decode(&document); err != nil {
		return nil // an empty file, or a file that the reader has refused
	}
	if err := d.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		complaints = append(complaints, "---: a second document, which the server would not read")
	}
	for _, node := range document.Content {
		complaints = append(complaints, keysOf(node, reflect.TypeFor[Config](), "")...)
	}
	return complaints
}

// keysOf checks the keys of a value of type t, and of the values in it. where is the prefix of its
// keys in complaints.
func keysOf(node *yaml.Node, t reflect.Type, where string) (complaints []string) {
	switch node.Kind {
	case yaml.AliasNode:
		return keysOf(node.Alias, t, where)
	case yaml.SequenceNode:
		of := reflect.TypeFor[any]()
		if t.Kind() == reflect.Slice {
			of = t.Elem()
		}
		for k, one := range node.Content {
			complaints = append(complaints,
				keysOf(one, of, fmt.Sprintf("%s[%d].", strings.TrimSuffix(where, "."), k))...)
		}
	case yaml.MappingNode:
		seen := map[string]string{}
		for k := 0; k+1 < len(node.Content); k += 2 {
			key, value := node.Content[k].Value, node.Content[k+1]
			if node.Content[k].Tag == "!!merge" {
				complaints = append(complaints, keysOf(value, t, where)...)
				continue
			}
			of, there := fieldOf(t, key)
			lower := strings.ToLower(key)
			switch other, twice := seen[lower]; {
			case !there:
				complaints = append(complaints, fmt.Sprintf("%s%s: there is no such key%s", where, key, belongs(t, key)))
			case twice:
				complaints = append(complaints, fmt.Sprintf("%s%s: the key %s is there already", where, key, other))
			}
			seen[lower] = key
			complaints = append(complaints, keysOf(value, of, where+key+".")...)
		}
	}
	return complaints
}

// belongs says where an unknown key belongs: a key of a source that a cache has beside it. Of others, it says what a t
// has.
func belongs(t reflect.Type, key string) string {
	if _, there := fieldOf(t, "source"); there && slices.Contains(kinds.Around, key) {
		return "; it belongs under source"
	}
	var known []string
	for k := range t.NumField() {
		if key := t.Field(k).Tag.Get("key"); key != "" {
			known = append(known, key)
		}
	}
	slices.Sort(known)
	return "; known are: " + strings.Join(known, ", ")
}

// fieldOf returns the type of a key's value in a t. A type that is not a struct of ours accepts any
// key.
func fieldOf(t reflect.Type, key string) (of reflect.Type, ok bool) {
	if t.Kind() != reflect.Struct {
		return reflect.TypeFor[any](), true
	}
	for k := range t.NumField() {
		if f := t.Field(k); f.IsExported() && f.Tag.Get("key") == key {
			return f.Type, true
		}
	}
	return reflect.TypeFor[any](), false
}
