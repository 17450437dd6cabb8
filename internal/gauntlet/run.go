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
	Scenario string  `json:"scenario"`
	Library  string  `json:"library"`
	Outcome  outcome `json:"outcome"`
	Note     string  `json:"note"`
	Runs     int     `json:"runs"`
	Fails    int     `json:"fails"`
}

// run returns the findings, one for each scenario and library, in the order of the plan.
func (p plan) run() (report, error) {
	server, err := serverVersion()
	if err != nil {
		return report{}, err
	}
	verdicts := make([][]verdict, len(p.scenarios)*len(p.libraries))
	var mu sync.Mutex // guards verdicts
	var runs sync.WaitGroup
	slots := make(chan struct{}, p.atOnce)
	for range p.times {
		for i := range verdicts {
			s, lib := p.scenarios[i/len(p.libraries)], p.libraries[i%len(p.libraries)]
			slots <- struct{}{}
			runs.Go(func() {
				defer func() { <-slots }()
				v := s.try(lib, p.patience)
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
		f.Scenario, f.Library = p.scenarios[i/len(p.libraries)].name, p.libraries[i%len(p.libraries)].name
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
