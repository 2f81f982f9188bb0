package model

import (
	"testing"
	"time"
)

const limit = 3_000_000

func TestProtocol(t *testing.T) {
	for _, c := range Configs() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			start := time.Now()
			r := c.Explore(limit)
			t.Logf("%s: %s, %.1f s", c.Name, r, time.Since(start).Seconds())
			if r.Violation != "" {
				t.Fail()
			}
		})
	}
}

func TestMutations(t *testing.T) {
	for _, m := range Mutants {
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			var all []string
			for _, c := range Configs() {
				c.Broken = m.Mutation
				if r := c.Explore(limit); r.Violation != "" {
					all = append(all, c.Name)
					if len(all) == 1 {
						t.Logf("%s, found in %s: %s", m.Text, c.Name, r)
					}
				}
			}
			t.Logf("%s: found in %v", m.Name, all)
			if len(all) == 0 {
				t.Errorf("%s survives", m.Text)
			}
		})
	}
}
