package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"
)

// checkKeys complains about what the reader of the file would pass over in silence: keys that there
// are not, with a value or without, keys in capitals, those that come twice but for that, and
// further documents.
func checkKeys(text []byte) (complaints []string) {
	d := yaml.NewDecoder(bytes.NewReader(text))
	var document yaml.Node
	if err := d.Decode(&document); err != nil {
		return nil // an empty file, or one that was refused already
	}
	if err := d.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		complaints = append(complaints, "---: there is a second document, of which nothing would be read")
	}
	for _, node := range document.Content {
		complaints = append(complaints, keysOf(node, reflect.TypeFor[Config](), "")...)
	}
	return complaints
}

// keysOf looks at the keys of a value that is to become a t, and of the values in it. where is what
// its keys are named by.
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
				complaints = append(complaints, fmt.Sprintf("%s%s: there is no such key", where, key))
			case twice:
				complaints = append(complaints, fmt.Sprintf("%s%s: it is there as %s already", where, key, other))
			}
			seen[lower] = key
			complaints = append(complaints, keysOf(value, of, where+key+".")...)
		}
	}
	return complaints
}

// fieldOf returns the type of what a key of a t is; anything may be in what is not a struct of
// ours.
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
