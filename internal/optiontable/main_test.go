package main

import (
	"os"
	"testing"
)

// Ensure that C, Python and the documents have the options of shm.OptionTable.
func TestGeneratedFilesAreClean(t *testing.T) {
	for path, write := range generated {
		path = "../" + path
		have, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if string(have) != write(string(have)) {
			t.Errorf("%s differs from what shm/option_table.go says: run go generate ./shm and commit it", path)
		}
	}
}
