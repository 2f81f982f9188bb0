package tar

import (
	"fmt"
	"slices"
	"strings"

	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
)

// field is a field of the samples that are read.
type field struct {
	name   string   // the first of names
	names  []string // names in shards: a sample's field is the first of these that it has
	number bool     // a decimal number as text, read as int64
}

// wantedFields returns the fields of the settings, or those of the first sample if the settings
// name none. It returns ErrInvalid.
func wantedFields(o *settings, first func() []string) ([]field, error) {
	texts := o.Fields
	if texts == nil {
		texts = first()
		slices.Sort(texts)
	}
	var fields []field
	seen := map[string]bool{}
	for _, text := range texts {
		names := strings.Split(strings.ToLower(text), ";") // like webdataset's to_tuple("jpg;png", "cls")
		for k, name := range names {
			name = strings.TrimPrefix(name, ".")
			if name == "" {
				return nil, fmt.Errorf("%w: fields: %q has no name; a field is the text after the first dot of a "+
					"member, such as jpg",
					source.ErrInvalid, text)
			}
			if seen[name] {
				return nil, fmt.Errorf("%w: fields: %q occurs twice", source.ErrInvalid, name)
			}
			names[k], seen[name] = name, true
		}
		fields = append(fields, field{name: names[0], names: names})
	}
	for _, text := range o.Int64 {
		k := slices.IndexFunc(fields, func(f field) bool { return f.name == strings.TrimPrefix(strings.ToLower(text), ".") })
		if k < 0 {
			return nil, fmt.Errorf("%w: int64: %q is none of the fields %s", source.ErrInvalid, text, fieldNames(fields))
		}
		fields[k].number = true
	}
	return fields, nil
}

func fieldNames(fields []field) string {
	var names []string
	for _, f := range fields {
		names = append(names, strings.Join(f.names, ";"))
	}
	return strings.Join(names, ", ")
}

// keyField is the name of the field that has the key of a sample.
const keyField = "__key__"

// schemaOf returns the schema of the fields, and of a key after them. It is variable-size unless all are numbers.
func schemaOf(fields []field, keys bool) (shm.Schema, error) {
	var all []shm.Field
	variable := keys
	ofBytes := func(name string) shm.Field {
		return shm.Field{Name: name, DType: shm.Bytes, Dims: []uint64{shm.VariableDim}}
	}
	for _, f := range fields {
		one := ofBytes(f.name)
		if f.number {
			one = shm.Field{Name: f.name, DType: shm.Int64}
		}
		variable = variable || !f.number
		all = append(all, one)
	}
	if keys {
		all = append(all, ofBytes(keyField))
	}
	schema, err := shm.NewSchema(all, variable)
	if err != nil {
		return schema, fmt.Errorf("%w: fields %s: %w; name the fields to read in fields", source.ErrInvalid,
			fieldNames(fields), err)
	}
	return schema, nil
}
