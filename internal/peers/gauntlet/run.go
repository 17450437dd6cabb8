package main

import (
	"slices"
	"sync"
	"time"
)

// plan is what to run.
type plan struct {
	scenarios     []scenario
	libraries     []library
	times, atOnce int
	patience      time.Duration
}

// finding is what the runs of a scenario say of a library.
type finding struct {
	Scenario string
	Library  string
	Outcome  outcome
	Note     string
	Runs     int
	Fails    int
}

// run returns the findings, one for each scenario and library that it fits, in the order of the plan.
func (p plan) run() (report, error) {
	server, err := serverVersion()
	if err != nil {
		return report{}, err
	}
	type pair struct {
		scenario
		library
	}
	var pairs []pair
	for _, s := range p.scenarios {
		for _, lib := range p.libraries {
			if lib.fits(s) {
				pairs = append(pairs, pair{s, lib})
			}
		}
	}
	verdicts := make([][]verdict, len(pairs))
	var mu sync.Mutex // guards verdicts
	var runs sync.WaitGroup
	slots := make(chan struct{}, p.atOnce)
	for range p.times {
		for i, of := range pairs {
			slots <- struct{}{}
			runs.Go(func() {
				defer func() { <-slots }()
				v := of.scenario.try(of.library, p.patience)
				mu.Lock()
				defer mu.Unlock()
				verdicts[i] = append(verdicts[i], v)
			})
		}
	}
	runs.Wait()
	r := report{plan: p, server: server}
	for i, vs := range verdicts {
		f := sum(vs)
		f.Scenario, f.Library = pairs[i].scenario.name, pairs[i].library.name
		r.findings = append(r.findings, f)
	}
	return r, nil
}

// sum is the finding of some verdicts; its note is that of the first run that did not pass, if any.
func sum(verdicts []verdict) finding {
	f := finding{Outcome: verdicts[0].outcome, Note: verdicts[0].note, Runs: len(verdicts)}
	for _, v := range verdicts {
		if v.outcome == fails {
			f.Fails++
		}
		if v.outcome != f.Outcome {
			f.Outcome = varies
		}
	}
	for _, v := range slices.Backward(verdicts) {
		if v.outcome == fails || v.outcome == aborted {
			f.Note = v.note
		}
	}
	return f
}
