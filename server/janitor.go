package server

import (
	"log/slog"
	"time"

	"github.com/stocached/stocached/cache"
)

// janitorPause is how often slots that dead clients left claimed are looked for. Whoever wants such a sample takes it back at once; this is for samples that nobody wants.
const janitorPause = time.Second

// janitor takes back what dead clients left claimed, until stop is closed.
func janitor(c *cache.Cache, log *slog.Logger, stop <-chan struct{}) {
	tick := time.NewTicker(janitorPause)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		n, err := c.Recover()
		if err != nil {
			log.Error("looking for what dead clients left claimed", "error", err)
		}
		if n > 0 {
			log.Info("took back what dead clients had left claimed", "samples", n)
		}
	}
}
