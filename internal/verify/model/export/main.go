// Command export writes the schedules that are replayed on the real code, chosen from a fixed seed:
// go generate ./internal/verify/model.
package main

import (
	"flag"
	"log"
	"os"

	"github.com/stocached/stocached/internal/verify/model"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("export: ")
	out := flag.String("o", "", "file to write")
	flag.Parse()
	text, err := model.Encode(model.Sample())
	if err == nil {
		err = os.WriteFile(*out, text, 0o644)
	}
	if err != nil {
		log.Fatal(err)
	}
}
