package main

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// status is what the line of each minute says.
type status struct {
	began    time.Time
	duration time.Duration
	parts    []*part

	mu    sync.Mutex // guards what follows; the parts are read while one of them runs
	part  string
	seed  uint64
	sums  []string
	wrong int
}

// turn notes whose turn it is.
func (s *status) turn(p *part, seed uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.part, s.seed = p.name, seed
}

// ran notes the end of a turn.
func (s *status) ran(failed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if failed {
		s.wrong++
	}
	s.sums = nil
	for _, p := range s.parts {
		s.sums = append(s.sums, fmt.Sprintf("%s %d %s in %v", p.name, p.total, p.unit, p.time.Round(time.Second)))
	}
}

func (s *status) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.part == "" {
		return fmt.Sprintf("%s the parts are being built", time.Now().Format(time.TimeOnly))
	}
	return fmt.Sprintf("%s %v of %v, %s SEED=%d; so far %s; violations %d", time.Now().Format(time.TimeOnly),
		time.Since(s.began).Round(time.Second), s.duration, s.part, s.seed, strings.Join(s.sums, ", "), s.wrong)
}

// tellEachMinute prints the line until the function that it returns is called.
func (s *status) tellEachMinute() func() {
	over := make(chan struct{})
	var telling sync.WaitGroup
	telling.Go(func() {
		minute := time.NewTicker(time.Minute)
		defer minute.Stop()
		for {
			select {
			case <-minute.C:
				fmt.Println(s)
			case <-over:
				return
			}
		}
	})
	return func() {
		close(over)
		telling.Wait()
	}
}
