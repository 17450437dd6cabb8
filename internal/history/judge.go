package history

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// Tally sums up what was judged by one model.
type Tally struct {
	Histories, Operations int
	Granted               int // acquisitions or ticks
	Unknown               int // calls whose outcome nobody knows
	Refused, Excused      int // refusals, and those that say nothing
	Lost                  int // holds that ended before their release
	Stale                 int // reads and writes that the register refused
	Violations            int
}

// Add adds another.
func (t *Tally) Add(o Tally) {
	t.Histories += o.Histories
	t.Operations += o.Operations
	t.Granted += o.Granted
	t.Unknown += o.Unknown
	t.Refused += o.Refused
	t.Excused += o.Excused
	t.Lost += o.Lost
	t.Stale += o.Stale
	t.Violations += o.Violations
}

// Models are those that a record is judged by, by name.
var Models = map[string]porcupine.Model{"mutex": Mutex(), "fence": Fence(), "reentry": Reentry(), "claim": Claim(),
	"permit": Permit(), "shared": Shared(), "progress": Progress()}

// limit is how long one history may take to judge. Most take some milliseconds.
const limit = time.Minute

// A Breach is a history that cannot have happened one call after the other, or that was too long to tell.
type Breach struct {
	Model, Key string
	Verdict    porcupine.CheckResult
	Picture    string // a file
}

func (b Breach) String() string {
	if b.Verdict == porcupine.Unknown {
		return fmt.Sprintf("%s of %s: not judged within %v", b.Model, b.Key, limit)
	}
	return fmt.Sprintf("%s of %s: not linearizable; a picture is in %s", b.Model, b.Key, b.Picture)
}

// Judge judges a record. The tallies are by model. For each breach there is a picture in a directory for temporary
// files, unless there are many.
func (r *Record) Judge(pictures bool) (map[string]*Tally, []Breach, error) {
	histories, tallies := r.Histories()
	var breaches []Breach
	for name, byKey := range histories {
		model := Models[name]
		for key, ops := range byKey {
			tallies[name].Histories++
			tallies[name].Operations += len(ops)
			verdict := porcupine.CheckOperationsTimeout(model, ops, limit)
			if verdict == porcupine.Ok {
				continue
			}
			tallies[name].Violations++
			b := Breach{Model: name, Key: key, Verdict: verdict}
			if pictures && len(breaches) < 3 {
				file, err := picture(model, ops, "holdfast-"+name+"-*.html")
				if err != nil {
					return tallies, breaches, err
				}
				b.Picture = file
			}
			breaches = append(breaches, b)
		}
	}
	return tallies, breaches, nil
}

// picture draws a history and how far it can be explained.
func picture(model porcupine.Model, ops []porcupine.Operation, pattern string) (string, error) {
	last := int64(0)
	for _, o := range ops {
		if o.Return < int64(Forever) {
			last = max(last, o.Return)
		}
	}
	ops = slices.Clone(ops)
	for i := range ops { // or the page is as wide as for ever is long
		if ops[i].Return == int64(Forever) {
			ops[i].Return = max(last, ops[i].Call) + int64(100*time.Millisecond)
		}
	}
	_, info := porcupine.CheckOperationsVerbose(model, ops, limit)
	f, err := os.CreateTemp("", pattern)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return f.Name(), porcupine.Visualize(model, info, f)
}

// Histories turns a record into operations, by model and key.
func (r *Record) Histories() (map[string]map[string][]porcupine.Operation, map[string]*Tally) {
	histories, tallies := map[string]map[string][]porcupine.Operation{}, map[string]*Tally{}
	for name := range Models {
		histories[name], tallies[name] = map[string][]porcupine.Operation{}, &Tally{}
	}
	add := func(model, key string, o porcupine.Operation) {
		histories[model][key] = append(histories[model][key], o)
	}
	all := r.calls()
	orphans := r.orphans(all)
	unseen := r.ghosts(all, orphans)
	for _, o := range all {
		switch o.What {
		case Several:
			if out := o.out(); out == Granted || out == Stuck {
				tallies["progress"].count(o)
				add("progress", o.Key, operation(o, false, ProgressInput{Stuck: out == Stuck}, nil, o.At, o.back()))
			}
			fallthrough
		case Locking:
			r.addLock(o, unseen, tallies["mutex"], func(op porcupine.Operation) { add("mutex", o.Key, op) })
			if o.out() == Granted {
				tallies["fence"].Granted++
				add("fence", o.Key, operation(o, false, FenceInput{Does: Grant, Token: o.done.Token}, FenceOutput{}, o.At, o.back()))
			}
		case Reentrant:
			if orphans[o] {
				tallies["reentry"].Excused++
				continue
			}
			r.addReentrant(o, all, unseen, tallies["reentry"], func(op porcupine.Operation) { add("reentry", o.Key, op) })
		case Permitted, Sharing:
			model := string(o.What)
			if orphans[o] {
				tallies[model].Excused++
				continue
			}
			r.addPermit(o, all, unseen, tallies[model], func(op porcupine.Operation) { add(model, o.Key, op) })
		case Reading, Writing:
			if op, ok := r.access(o, tallies["fence"]); ok {
				add("fence", o.Key, op)
			}
		}
	}
	r.addClaims(all, tallies["claim"], func(key string, op porcupine.Operation) { add("claim", key, op) })
	for _, ops := range histories["fence"] {
		chain(ops)
	}
	return histories, tallies
}

// chain tells each grant which one is before it. There is no other order in which tokens rise, and where many wait at once a
// search for it would not end.
func chain(ops []porcupine.Operation) {
	var grants []*porcupine.Operation
	for i := range ops {
		if ops[i].Input.(FenceInput).Does == Grant {
			grants = append(grants, &ops[i])
		}
	}
	token := func(o *porcupine.Operation) int64 { return o.Input.(FenceInput).Token }
	slices.SortFunc(grants, func(a, b *porcupine.Operation) int { return cmp.Compare(token(a), token(b)) })
	for i, o := range grants[min(1, len(grants)):] {
		in := o.Input.(FenceInput)
		in.Follows = token(grants[i])
		o.Input = in
	}
}

func (t *Tally) count(o *op) {
	switch o.out() {
	case Granted:
		t.Granted++
	case Refused:
		t.Refused++
	case Unknown:
		t.Unknown++
	}
}

func (r *Record) addLock(o *op, unseen ghosts, t *Tally, add func(porcupine.Operation)) {
	t.count(o)
	switch o.out() {
	case Granted:
		from, to, how := r.end(o)
		if o.ended == nil || o.ended.out() != Released {
			t.Lost++
		}
		add(operation(o, false, MutexInput{Does: Take, Hold: o.id}, nil, o.At, o.back()))
		add(operation(o, true, MutexInput{Does: End, Hold: o.id, How: how}, nil, from, to))
	case Refused:
		in := MutexInput{Does: Refuse, Excused: unseen.excuse(o)}
		if in.Excused {
			t.Excused++
		}
		add(operation(o, false, in, nil, o.At, o.back()))
	}
}

func (r *Record) addReentrant(o *op, all []*op, unseen ghosts, t *Tally, add func(porcupine.Operation)) {
	t.count(o)
	in := ReentryInput{Owner: o.Owner, Handle: o.id}
	switch o.out() {
	case Granted:
		from, to, how := r.end(o)
		if o.ended == nil || o.ended.out() != Released {
			t.Lost++
		}
		in.Does, in.Token, in.Unseen = Take, o.done.Token, unseen.unseen(o)
		add(operation(o, false, in, nil, o.At, o.back()))
		in.Does, in.How = End, how
		add(operation(o, true, in, nil, from, to))
	case Refused:
		in.Does, in.Excused = Refuse, unseen.excuse(o) || kept(all, o)
		if in.Excused {
			t.Excused++
		}
		add(operation(o, false, in, nil, o.At, o.back()))
	}
}

func (r *Record) addPermit(o *op, all []*op, unseen ghosts, t *Tally, add func(porcupine.Operation)) {
	t.count(o)
	in := PermitInput{Hold: o.id, Limit: o.Limit}
	switch o.out() {
	case Granted:
		from, to, how := r.end(o)
		in.Does, in.Token = Take, o.done.Token
		add(operation(o, false, in, nil, o.At, o.back()))
		in.Does, in.How = End, how
		if o.ended != nil && o.ended.out() == Released && from == o.ended.At {
			add(operation(o, true, in, nil, from, to))
			return
		}
		t.Lost++
		if to = min(to, r.remained(o)); to < Forever {
			to += Stamp(o.id) // one after the other, where many are over at once, or each would double the number of orders
			in.Lapsed = true
			add(operation(o, true, in, nil, to, to))
		}
		in.Does, in.Lapsed = Lapse, false
		add(operation(o, true, in, nil, from, max(from, o.back())))
	case Refused:
		in.Does, in.Excused = Refuse, r.inVain(all, unseen, o)
		if in.Excused {
			t.Excused++
		}
		add(operation(o, false, in, nil, o.At, o.back()))
	}
}

// access is a read or a write of a register. What became of one that its worker did not live to hear of, the register
// knows; one that never got there was none.
func (r *Record) access(o *op, t *Tally) (porcupine.Operation, bool) {
	in := FenceInput{Does: Read, Token: o.Token}
	if o.What == Writing {
		in = FenceInput{Does: Write, Token: o.Token, Value: o.Value, Based: o.Based}
	}
	var out FenceOutput
	if o.done != nil {
		out = FenceOutput{Refused: o.done.Out == Refused, Value: o.done.Value}
	} else {
		t.Unknown++
		var ok bool
		if out, ok = r.Registers.outcome(o.worker, o.Op); !ok {
			return porcupine.Operation{}, false
		}
	}
	if out.Refused {
		t.Stale++
	}
	return operation(o, false, in, out, o.At, o.back()), true
}

func (r *Record) addClaims(all []*op, t *Tally, add func(string, porcupine.Operation)) {
	byKey := map[string][]*op{}
	for _, o := range all {
		if o.What == Claiming {
			byKey[o.Key] = append(byKey[o.Key], o)
		}
	}
	for key, claims := range byKey {
		for _, o := range claims {
			t.count(o)
			if o.out() != Granted && o.out() != Refused {
				continue
			}
			in := ClaimInput{Tick: o.Tick, Gap: o.Gap, Granted: o.out() == Granted}
			for _, other := range claims {
				// Of several servers one that is refused in the end, or is then outside of the window, has raised the mark on some
				// of them for a while.
				unseen := other.out() == Unknown || r.Quorum && (other.out() == Refused || other.out() == Nothing) && other != o
				if unseen && other.At <= o.back() {
					in.Unknown = max(in.Unknown, other.Tick)
				}
				for _, f := range r.Forgets {
					if f.From <= o.back() && other.At <= f.To {
						in.Forgotten = max(in.Forgotten, other.Tick)
					}
				}
				if other.Tick > in.Forgotten && r.passed(other.Tick, other.At, o.back()) {
					in.Forgotten = other.Tick
				}
			}
			add(key, operation(o, false, in, nil, o.At, o.back()))
		}
	}
}
