package model

import (
	"fmt"
	"hash/maphash"
	"strings"
)

// action is one move: a step of a thread, or another event.
type action uint8

const (
	stepAction    action = 0  // + thread
	timeoutAction action = 16 // + thread: a drain that waits gives up
	flushAction   action = 32 // + thread: its oldest buffered store becomes visible
	deathAction   action = 48 // + client
)

// Report is the result of an exploration.
type Report struct {
	States      int
	Transitions int
	Rests       int    // states in which no thread can move
	Recovered   int    // distinct memories after which the recovery was checked
	Violation   string // "" if every invariant holds in all states
	Schedule    []string
	Points      map[string]bool // fault points passed
	Steps       [steps]bool     // steps made
	// Asked are the mutations that steps asked for. Any other one leaves each step of this configuration as it is.
	Asked [256]bool // by Mutation
}

// String returns the counterexample, a step a line, or the numbers.
func (r *Report) String() string {
	numbers := fmt.Sprintf("%d states, %d transitions, %d at rest, %d memories recovered from", r.States,
		r.Transitions, r.Rests, r.Recovered)
	if r.Violation == "" {
		return numbers
	}
	return fmt.Sprintf("VIOLATED: %s\n%s\n(%s)", r.Violation, strings.Join(r.Schedule, "\n"), numbers)
}

// fingerprint stands for a state in the table of visited ones. It has 128 bits, so that two states
// of all our configurations share one with a chance below 2^-85.
type fingerprint struct{ a, b uint64 }

var seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

func fingerprintOf[T comparable](v T) fingerprint {
	return fingerprint{maphash.Comparable(seeds[0], v), maphash.Comparable(seeds[1], v)}
}

// origin says how a state was first reached.
type origin struct {
	parent uint32
	by     action
}

// Explore visits every reachable state, breadth-first, until an invariant is violated. It panics
// after limit states, which is an error of the configuration.
func (c *Config) Explore(limit int) *Report {
	y := c.system(0)
	report := &Report{Points: map[string]bool{}}
	visited := map[fingerprint]struct{}{}
	recovered := map[fingerprint]struct{}{}
	var origins []origin
	type item struct {
		s  State
		id uint32
	}
	var frontier, next []item

	violated := func(parent uint32, by action, what string) bool {
		if what == "" {
			return false
		}
		report.Violation = what
		report.Schedule = y.explain(path(origins, parent, by))
		return true
	}
	add := func(s *State, parent uint32, by action) bool {
		f := fingerprintOf(*s)
		if _, seen := visited[f]; seen {
			return false
		}
		visited[f] = struct{}{}
		if len(origins) == limit {
			panic(fmt.Sprintf("model: %s has more than %d states", c.Name, limit))
		}
		origins = append(origins, origin{parent, by})
		next = append(next, item{*s, uint32(len(origins) - 1)})
		if violated(parent, by, s.check(y)) {
			return true
		}
		if c.Crashes > 0 {
			m := fingerprintOf(s.mem)
			if _, seen := recovered[m]; !seen {
				recovered[m] = struct{}{}
				return violated(parent, by, s.checkRecovery(y, nil))
			}
		}
		return false
	}
	done := func() *Report {
		report.States, report.Recovered, report.Asked = len(origins), len(recovered), y.asked
		return report
	}

	var n State     // result of one move at a time: a new one for each move would cost an eighth of the time
	var x execution // likewise
	start := y.start()
	if add(&start, 0, 0) {
		return done()
	}
	for len(next) > 0 {
		frontier, next = next, frontier[:0]
		for k := range frontier {
			s, id := &frontier[k].s, frontier[k].id
			moves := 0
			for t := range y.janitor() {
				for _, by := range y.moves(s, t) {
					n, x = *s, execution{y: y, s: &n}
					if by < flushAction {
						report.Steps[s.threads[t].pc] = true
					}
					y.applyTo(&x, by)
					if x.waits {
						continue
					}
					if x.point != "" {
						report.Points[x.point] = true
					}
					moves++
					report.Transitions++
					if violated(id, by, x.violation) || add(&n, id, by) {
						return done()
					}
				}
			}
			if moves == 0 {
				report.Rests++
				if violated(origins[id].parent, origins[id].by, s.checkRest(y)) {
					return done()
				}
			}
			for cl := range y.Clients {
				if s.mayDie(y, uint8(cl)) {
					n = *s
					n.crashes++
					n.die(y, uint8(cl))
					report.Transitions++
					if add(&n, id, deathAction+action(cl)) {
						return done()
					}
				}
			}
		}
	}
	return done()
}

// moves lists what thread t can do in a state.
func (y *system) moves(s *State, t int) []action {
	var m []action
	if s.enabled(y, t) {
		m = append(m, stepAction+action(t))
		if y.Timeouts && s.threads[t].pc == drainEntry {
			n := *s
			if x := y.apply(&n, stepAction+action(t)); x.waits {
				m = append(m, timeoutAction+action(t))
			}
		}
	}
	if s.threads[t].buffer[0].on {
		m = append(m, flushAction+action(t))
	}
	return m
}

// mayDie says whether a client can die in this state. A client with buffered stores dies only after
// they are visible, as the kernel ensures.
func (s *State) mayDie(y *system, c uint8) bool {
	if s.crashes >= y.Crashes || s.clients[c].record == 0 || s.clients[c].dead {
		return false
	}
	for t, ref := range y.threads {
		if ref.client == c && s.threads[t].buffer[0].on {
			return false
		}
	}
	return true
}

// apply performs one action.
func (y *system) apply(s *State, by action) *execution {
	return y.applyTo(&execution{y: y, s: s}, by)
}

func (y *system) applyTo(x *execution, by action) *execution {
	x.me = int(by & 15)
	switch by &^ 15 {
	case stepAction:
		x.step()
	case timeoutAction:
		x.t().pc = drainTimeout // drainTimeout is a thread's pc only during this step
		x.step()
	case flushAction:
		b := x.t().buffer[0]
		x.say("store of %s is seen", b.at.name())
		x.flush()
	case deathAction:
		x.s.crashes++
		x.s.die(y, uint8(by-deathAction))
		x.say("dies; its locks are freed")
	}
	return x
}

// path lists the actions from the start to a state and one more.
func path(origins []origin, parent uint32, by action) []action {
	back := []action{by}
	for parent != 0 {
		back = append(back, origins[parent].by)
		parent = origins[parent].parent
	}
	for i, j := 0, len(back)-1; i < j; i, j = i+1, j-1 {
		back[i], back[j] = back[j], back[i]
	}
	return back
}

// explain runs a schedule again and describes it, a step a line. If the recovery fails, it adds the
// steps of the next client.
func (y *system) explain(actions []action) []string {
	var lines []string
	s := y.start()
	for n, by := range actions {
		x := execution{y: y, s: &s, verbose: true}
		who := ""
		if by >= deathAction {
			who = fmt.Sprintf("client %d", by-deathAction)
		} else {
			t := int(by & 15)
			ref := &y.threads[t]
			who = fmt.Sprintf("thread %d", t)
			if k := int(s.threads[t].op); k < len(ref.program) {
				who += " " + ref.program[k].String()
			}
		}
		y.applyTo(&x, by)
		lines = append(lines, fmt.Sprintf("%4d  %-34s %s", n+1, who, strings.Join(x.text, "; ")))
		if x.violation != "" {
			return lines
		}
	}
	if s.check(y) == "" && s.checkRecovery(y, nil) != "" {
		lines = append(lines, "      all clients die; a new client comes:")
		s.checkRecovery(y, func(x *execution) {
			if len(x.text) > 0 {
				lines = append(lines, "      "+strings.Join(x.text, "; "))
			}
		})
	}
	return lines
}

// String formats an operation for a counterexample.
func (o Op) String() string {
	switch o.Kind {
	case Register:
		return "register"
	case Get:
		return fmt.Sprintf("get(%d)", o.Sample)
	case Clear:
		if o.GiveUp {
			return "clear without waiting"
		}
		return "clear"
	case Recover:
		return "recover"
	}
	text := fmt.Sprintf("set(%d, v%d", o.Sample, o.Value)
	if o.units() > 1 {
		text += fmt.Sprintf(" of %d units", o.units())
	}
	if o.Overwrite {
		text += ", overwrite"
	}
	if o.GiveUp {
		text += ", abort"
	}
	return text + ")"
}
