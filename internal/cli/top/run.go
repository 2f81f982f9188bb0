package top

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	tea "charm.land/bubbletea/v2"
)

// Run shows the screen on a terminal until the user or a signal ends it.
func (m *Model) Run(terminal io.Writer) error {
	_, err := tea.NewProgram(m, tea.WithOutput(terminal)).Run()
	if errors.Is(err, tea.ErrInterrupted) {
		return nil
	}
	return err
}

// Print prints frames as texts, one after the other: only one, or until the context ends. The first one comes
// after an interval, because rates need two looks.
func (m *Model) Print(ctx context.Context, w io.Writer, once bool) error {
	m.Take(m.Look(nil))
	tick := time.NewTicker(m.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		m.Take(m.Look(nil))
		if _, err := fmt.Fprintln(w, m.Text()); err != nil || once {
			return err
		}
		if _, err := fmt.Fprintln(w); err != nil {
			return err
		}
	}
}
