package config

import "reflect"

// Keys lists the last part of every key.
func Keys() (all []string) {
	var walk func(t reflect.Type)
	walk = func(t reflect.Type) {
		for t.Kind() == reflect.Slice {
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct {
			return
		}
		for k := range t.NumField() {
			if key := t.Field(k).Tag.Get("key"); key != "" {
				all = append(all, key)
				walk(t.Field(k).Type)
			}
		}
	}
	walk(reflect.TypeFor[Config]())
	return all
}
