package history

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

// script writes the journals of two workers in a few words: "call worker op what key", "done worker op out token",
// "counts worker op until", "gone worker op", "release worker op of", "claim worker op tick", "killed worker", "forget", "step by".
// Each line is one moment, 10 apart.
type script struct {
	r  Record
	at Stamp
}

func (s *script) log(worker int) *Log {
	for _, l := range s.r.Logs {
		if l.Worker == worker {
			return l
		}
	}
	s.r.Logs = append(s.r.Logs, &Log{Worker: worker})
	return s.r.Logs[len(s.r.Logs)-1]
}

func (s *script) add(worker int, e Entry) {
	s.at += 10
	e.At = s.at
	l := s.log(worker)
	l.Entries = append(l.Entries, e)
}

func (s *script) try(worker, op int) {
	s.add(worker, Entry{Kind: Began, Op: op, What: Locking, Key: "k"})
}
func (s *script) wait(worker, op int) {
	s.add(worker, Entry{Kind: Began, Op: op, What: Locking, Key: "k", Waits: true})
}
func (s *script) got(worker, op int) {
	s.add(worker, Entry{Kind: Done, Op: op, Out: Granted, Token: int64(s.at) + 10})
}
func (s *script) gone(worker, op int) { s.add(worker, Entry{Kind: NoMore, Op: op}) }
func (s *script) freed(worker, op int) {
	s.add(worker, Entry{Kind: Began, Op: op, What: Releasing, Of: op - 1})
}
func (s *script) killed(worker int) { s.at += 10; s.log(worker).Killed = s.at }
func (s *script) forget()           { s.at += 10; s.r.Forgets = append(s.r.Forgets, Span{s.at, s.at + 1}) }

// step sets the clock of a server, which 50 of a lease are safe from.
func (s *script) step(by time.Duration) {
	s.at += 10
	s.r.Steps = append(s.r.Steps, Step{From: s.at, To: s.at + 1, By: by})
}

func (s *script) out(worker, op int, out Outcome) { s.add(worker, Entry{Kind: Done, Op: op, Out: out}) }
func (s *script) counts(worker, op int, until Stamp) {
	s.add(worker, Entry{Kind: Counts, Op: op, Until: until})
}

func (s *script) claim(worker, op int, tick int64) {
	s.add(worker, Entry{Kind: Began, Op: op, What: Claiming, Key: "k", Tick: tick})
}

// of has a call name a limit, and returns when it was told what came of it.
func (s *script) of(worker, op, limit int, out Outcome) {
	s.add(worker, Entry{Kind: Began, Op: op, What: Permitted, Key: "k", Limit: limit})
	s.add(worker, Entry{Kind: Done, Op: op, Out: out, Token: int64(s.at)})
	if out == Granted {
		s.counts(worker, op, s.at+100)
	}
}

// enter acquires at once and counts on it for long.
func (s *script) enter(worker, op int, owner string, token int64) {
	s.add(worker, Entry{Kind: Began, Op: op, What: Reentrant, Key: "k", Owner: owner})
	s.add(worker, Entry{Kind: Done, Op: op, Out: Granted, Token: token})
	s.counts(worker, op, 1000)
}

// What a journal means to the models: who held what until when.
func TestRecord(t *testing.T) {
	hold := func(s *script) { s.try(1, 1); s.got(1, 1); s.counts(1, 1, 100) } // until 100, noted at 30
	take := func(s *script) { s.try(2, 1); s.got(2, 1) }
	tests := []struct {
		name   string
		breach string // empty for none
		write  func(s *script)
	}{
		{"released", "", func(s *script) { hold(s); s.freed(1, 2); s.out(1, 2, Released); take(s) }},
		{"two at once", "mutex", func(s *script) { hold(s); take(s) }},
		{"past its deadline", "", func(s *script) { hold(s); s.at = 100; take(s) }},
		{"renewed", "mutex", func(s *script) { hold(s); s.counts(1, 1, 300); s.at = 150; take(s) }},
		{"stopped, and released late", "mutex", func(s *script) { hold(s); s.at = 100; take(s); s.freed(1, 2); s.out(1, 2, Released) }},
		{"stopped, and told of the loss", "", func(s *script) { hold(s); s.at = 100; take(s); s.freed(1, 2); s.out(1, 2, Lost) }},
		{"lost before its deadline", "", func(s *script) { hold(s); take(s); s.gone(1, 1) }},
		{"lost at its deadline", "mutex", func(s *script) { hold(s); take(s); s.at = 100; s.gone(1, 1) }},
		{"killed", "", func(s *script) { hold(s); s.killed(1); take(s) }},
		{"killed later", "mutex", func(s *script) { hold(s); take(s); s.killed(1) }},
		{"unknown release", "", func(s *script) { hold(s); s.freed(1, 2); take(s); s.out(1, 2, Unknown) }},
		{"forgotten", "", func(s *script) { hold(s); s.forget(); take(s) }},
		{"entered again when it was forgotten", "", func(s *script) {
			s.enter(1, 1, "a", 5)
			s.forget()
			s.enter(2, 1, "b", 6)
			s.enter(1, 2, "a", 5)
		}},
		{"entered beside another", "reentry", func(s *script) { s.enter(1, 1, "a", 5); s.enter(2, 1, "b", 6); s.enter(1, 2, "a", 5) }},
		{"forgotten before", "mutex", func(s *script) { s.forget(); s.at += 10; hold(s); take(s) }},
		{"refused beside a hold", "", func(s *script) { hold(s); s.try(2, 1); s.out(2, 1, Refused); s.freed(1, 2); s.out(1, 2, Released) }},
		{"refused by nobody", "mutex", func(s *script) { s.try(2, 1); s.out(2, 1, Refused) }},
		{"refused beside one that hangs", "", func(s *script) { s.try(1, 1); s.try(2, 1); s.out(2, 1, Refused) }},
		{"refused before one that hangs", "mutex", func(s *script) { s.try(2, 1); s.out(2, 1, Refused); s.try(1, 1) }},
		{"refused after one that waited", "", func(s *script) {
			hold(s)
			s.wait(2, 1)
			s.out(2, 1, Refused)
			s.freed(1, 2)
			s.out(1, 2, Released)
			s.try(3, 1)
			s.out(3, 1, Refused)
		}},
		{"permits", "", func(s *script) { s.of(1, 1, 2, Granted); s.of(2, 1, 2, Granted); s.of(3, 1, 2, Refused) }},
		{"one permit too many", "permit", func(s *script) { s.of(1, 1, 2, Granted); s.of(2, 1, 2, Granted); s.of(3, 1, 2, Granted) }},
		{"beside one that allows none", "permit", func(s *script) { s.of(1, 1, 1, Granted); s.of(2, 1, 2, Granted) }},
		{"a permit past its deadline", "", func(s *script) { s.of(1, 1, 1, Granted); s.at += 100; s.of(2, 1, 1, Granted) }},
		{"a permit that was released late", "permit", func(s *script) {
			s.of(1, 1, 1, Granted)
			s.at += 100
			s.of(2, 1, 1, Granted)
			s.freed(1, 2)
			s.out(1, 2, Released)
		}},
		{"a permit of one that was killed", "", func(s *script) { s.of(1, 1, 1, Granted); s.killed(1); s.of(2, 1, 1, Granted) }},
		{"refused for one that was killed", "", func(s *script) { s.of(1, 1, 1, Granted); s.killed(1); s.at += 400; s.of(2, 1, 1, Refused) }},
		{"refused for one that was killed long ago", "permit", func(s *script) {
			s.of(1, 1, 1, Granted)
			s.killed(1)
			s.at += 500
			s.of(2, 1, 1, Refused)
		}},
		{"refused for a try that was killed long ago", "permit", func(s *script) {
			s.add(1, Entry{Kind: Began, Op: 1, What: Permitted, Key: "k", Limit: 1})
			s.killed(1)
			s.at += 500
			s.of(2, 1, 1, Refused)
		}},
		{"refused for a try that failed", "", func(s *script) { s.of(1, 1, 1, Unknown); s.at += 400; s.of(2, 1, 1, Refused) }},
		{"refused for a try that failed long ago", "permit", func(s *script) { s.of(1, 1, 1, Unknown); s.at += 500; s.of(2, 1, 1, Refused) }},
		{"refused for one in line that was killed", "", func(s *script) {
			s.add(1, Entry{Kind: Began, Op: 1, What: Permitted, Key: "k", Limit: 1, Waits: true})
			s.killed(1)
			s.at += 500
			s.of(2, 1, 1, Refused)
		}},
		{"refused beside one of its process", "", func(s *script) {
			s.try(1, 1)
			s.add(2, Entry{Kind: Began, Op: 1, What: Permitted, Key: "k", Limit: 1})
			s.of(2, 2, 1, Refused)
			s.out(2, 1, Refused)
		}},
		{"a permit that was forgotten", "", func(s *script) {
			s.of(1, 1, 1, Granted)
			s.forget()
			s.of(2, 1, 1, Granted)
			s.freed(1, 2)
			s.out(1, 2, Released)
		}},
		{"a token that falls", "fence", func(s *script) {
			hold(s)
			s.freed(1, 2)
			s.out(1, 2, Released)
			s.try(2, 1)
			s.add(2, Entry{Kind: Done, Op: 1, Out: Granted, Token: 1})
		}},
		{"entered in the place of one that asked twice", "", func(s *script) {
			s.add(1, Entry{Kind: Began, Op: 1, What: Reentrant, Key: "k", Owner: "a"}) // has token 5, and is stopped until it has not
			s.enter(2, 1, "a", 5)
			s.freed(2, 2)
			s.out(2, 2, Released)
			s.enter(2, 3, "a", 5)
			s.freed(2, 4)
			s.out(2, 4, Released)
			s.at += 300
			s.add(1, Entry{Kind: Done, Op: 1, Out: Granted, Token: 6})
		}},
		{"entered in the place of nobody", "reentry", func(s *script) {
			s.add(1, Entry{Kind: Began, Op: 1, What: Reentrant, Key: "k", Owner: "a"})
			s.enter(2, 1, "a", 5)
			s.freed(2, 2)
			s.out(2, 2, Released)
			s.enter(2, 3, "a", 5)
			s.freed(2, 4)
			s.out(2, 4, Released)
			s.add(1, Entry{Kind: Done, Op: 1, Out: Granted, Token: 6})
		}},
		{"refused beside one that asked twice", "", func(s *script) { s.try(1, 1); s.try(2, 1); s.out(2, 1, Refused); s.at += 300; s.got(1, 1) }},
		{"claimed", "", func(s *script) { s.claim(1, 1, 5); s.claim(2, 1, 5); s.out(1, 1, Granted); s.out(2, 1, Refused) }},
		{"claimed twice", "claim", func(s *script) { s.claim(1, 1, 5); s.claim(2, 1, 5); s.out(1, 1, Granted); s.out(2, 1, Granted) }},
		{"claimed by one that hangs", "", func(s *script) { s.claim(1, 1, 5); s.claim(2, 1, 5); s.out(2, 1, Refused) }},
		{"claimed by one whose tick was out of the window in the end", "", func(s *script) {
			s.r.Quorum = true // on which it may have been claimed before
			s.claim(1, 1, 5)
			s.claim(2, 1, 5)
			s.out(2, 1, Refused)
			s.out(1, 1, Nothing)
		}},
		{"claimed by one whose tick was out of the window of the only server", "claim", func(s *script) {
			s.claim(1, 1, 5)
			s.claim(2, 1, 5)
			s.out(2, 1, Refused)
			s.out(1, 1, Nothing)
		}},
		{"claimed by nobody", "claim", func(s *script) { s.claim(2, 1, 5); s.out(2, 1, Refused) }},
		{"claimed before it was forgotten", "", func(s *script) {
			s.claim(1, 1, 5)
			s.out(1, 1, Granted)
			s.forget()
			s.claim(2, 1, 5)
			s.out(2, 1, Granted)
		}},
		{"ended by a clock set forward", "", func(s *script) { hold(s); s.step(60); take(s) }},
		{"ended by a clock set forward twice", "", func(s *script) { hold(s); s.step(30); s.step(30); take(s) }},
		{"ended by a clock set back and then forward", "", func(s *script) { hold(s); s.step(-100); s.step(60); take(s) }},
		{"not ended by a clock set forward a little", "mutex", func(s *script) { hold(s); s.step(40); take(s) }},
		{"not ended by a clock set back", "mutex", func(s *script) { hold(s); s.step(-60); take(s) }},
		{"not ended by a clock set forward before", "mutex", func(s *script) { s.step(60); s.at += 10; hold(s); take(s) }},
		{"a permit ended by a clock set forward", "", func(s *script) { s.of(1, 1, 1, Granted); s.step(60); s.of(2, 1, 1, Granted) }},
		{"a permit not ended by a clock set back", "permit", func(s *script) { s.of(1, 1, 1, Granted); s.step(-60); s.of(2, 1, 1, Granted) }},
		{"entered again when a clock was set forward", "", func(s *script) {
			s.enter(1, 1, "a", 5)
			s.step(60)
			s.enter(2, 1, "b", 6)
			s.enter(1, 2, "a", 5)
		}},
		{"claimed before its window was over", "", func(s *script) {
			s.claim(1, 1, 5)
			s.out(1, 1, Granted)
			s.step(window + 5*time.Microsecond)
			s.step(-time.Minute)
			s.claim(2, 1, 5)
			s.out(2, 1, Granted)
		}},
		{"claimed again in its window", "claim", func(s *script) {
			s.claim(1, 1, 5)
			s.out(1, 1, Granted)
			s.step(window - time.Second)
			s.step(-time.Minute)
			s.claim(2, 1, 5)
			s.out(2, 1, Granted)
		}},
		{"claimed after its window was over", "claim", func(s *script) {
			s.step(2 * window)
			s.step(-2 * window)
			s.claim(1, 1, 5)
			s.out(1, 1, Granted)
			s.claim(2, 1, 5)
			s.out(2, 1, Granted)
		}},
		{"claimed after it was forgotten", "claim", func(s *script) {
			s.forget()
			s.claim(1, 1, 5)
			s.out(1, 1, Granted)
			s.claim(2, 1, 5)
			s.out(2, 1, Granted)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := &script{r: Record{Remains: 450, Margin: 50, Lease: 400}}
			tt.write(s)
			_, breaches, err := s.r.Judge(false)
			if err != nil {
				t.Fatal(err)
			}
			models := map[string]bool{}
			for _, b := range breaches {
				models[b.Model] = true
			}
			if got := strings.Join(slices.Sorted(maps.Keys(models)), " "); got != tt.breach {
				t.Errorf("got breaches of %q, want %q", got, tt.breach)
			}
		})
	}
}
