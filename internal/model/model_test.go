package model

import (
	"testing"
	"time"
)

// limit bounds the states of one configuration: a step that makes histories differ for ever would otherwise fill the memory.
const limit = 4_000_000

// The protocol as documented holds in every reachable state of every configuration.
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
			if r.Rests == 0 {
				t.Error("no state is at rest: nothing ever ends in this configuration")
			}
		})
	}
}

// Every breakage of the protocol is found, in the configuration that is there for it. The log has the shortest schedule.
func TestMutations(t *testing.T) {
	for _, m := range Mutants {
		if m.In == "" {
			continue
		}
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			c := configNamed(t, m.In)
			c.Broken = m.Mutation
			r := c.Explore(limit)
			t.Logf("%s. Found in %s: %s", m.Text, m.In, r)
			if r.Violation == "" {
				t.Errorf("nothing wrong is found when %s: the model or the claim is too weak", m.Text)
			}
		})
	}
}

// What the table of mutations calls redundant is: no configuration shows any harm without it. If one does, the reason given there is wrong.
func TestRedundant(t *testing.T) {
	for _, m := range Mutants {
		if m.In != "" {
			continue
		}
		for _, c := range Configs() {
			t.Run(m.Name+"/"+c.Name, func(t *testing.T) {
				t.Parallel()
				c.Broken = m.Mutation
				if r := c.Explore(limit); r.Violation != "" {
					t.Errorf("%s, which is thought harmless because %s. Found in %s: %s", m.Text, m.Redundant, c.Name, r)
				}
			})
		}
	}
}

// Every mutation of the code is in the table, once.
func TestMutantsListed(t *testing.T) {
	seen := map[Mutation]bool{AsDocumented: true}
	for _, m := range Mutants {
		if seen[m.Mutation] {
			t.Errorf("%s is listed twice", m.Name)
		}
		seen[m.Mutation] = true
	}
	if len(seen) != int(mutationCount) {
		t.Errorf("%d mutations are listed with the unbroken protocol, there are %d", len(seen), mutationCount)
	}
}

func configNamed(t *testing.T, name string) Config {
	t.Helper()
	for _, c := range Configs() {
		if c.Name == name {
			return c
		}
	}
	t.Fatalf("no configuration %q", name)
	return Config{}
}
