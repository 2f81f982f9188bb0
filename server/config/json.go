package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/stocached/stocached/server"

	"github.com/go-viper/mapstructure/v2"
)

// ParseCache reads one cache as JSON: an object with the keys that a cache has in the file. It is
// as strict as Load, with the same complaints. Relative paths of its source start at the folder of
// the file. Errors: ErrInvalid.
func (c *Config) ParseCache(body []byte) (server.CacheOptions, error) {
	var one Cache
	complaints := complaints(decodeJSON(body, &one), one.check)
	for k := range complaints {
		complaints[k] = strings.TrimPrefix(complaints[k], "config.Cache.") // the decoder's name for the top-level value
	}
	if len(complaints) > 0 {
		return server.CacheOptions{}, fmt.Errorf("%w: %s", ErrInvalid, strings.Join(complaints, "; "))
	}
	return c.cacheOptions(&one), nil
}

func decodeJSON(body []byte, into *Cache) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	value, err := readJSON(d)
	if err == nil {
		if _, err = d.Token(); err == io.EOF {
			err = nil
		} else {
			err = errors.New("something follows the object")
		}
	}
	if err != nil {
		return fmt.Errorf("not a JSON object with the keys of a cache: %w", err)
	}
	if _, ok := value.(map[string]any); !ok {
		return errors.New("not a JSON object with the keys of a cache")
	}
	settings := &mapstructure.DecoderConfig{Result: into}
	strict(settings)
	decoder, err := mapstructure.NewDecoder(settings)
	if err != nil {
		return err
	}
	return decoder.Decode(value)
}

// readJSON reads the next value into the types that YAML gives. Like YAML, it refuses a key that
// comes twice.
func readJSON(d *json.Decoder) (any, error) {
	token, err := nextToken(d)
	if err != nil {
		return nil, err
	}
	switch token := token.(type) {
	case json.Number:
		if n, err := strconv.Atoi(token.String()); err == nil {
			return n, nil
		}
		return token.Float64()
	case json.Delim:
		if token == '[' {
			list := []any{}
			for d.More() {
				value, err := readJSON(d)
				if err != nil {
					return nil, err
				}
				list = append(list, value)
			}
			_, err := nextToken(d)
			return list, err
		}
		object := map[string]any{}
		for d.More() {
			key, err := nextToken(d)
			if err != nil {
				return nil, err
			}
			name := key.(string) // the decoder returns only strings as keys
			if _, twice := object[name]; twice {
				return nil, fmt.Errorf("the key %q comes twice", name)
			}
			if object[name], err = readJSON(d); err != nil {
				return nil, err
			}
		}
		_, err := nextToken(d)
		return object, err
	}
	return token, nil
}

// nextToken reads a token that must exist.
func nextToken(d *json.Decoder) (json.Token, error) {
	token, err := d.Token()
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return token, err
}
