package main

import (
	"cmp"
	"math"
	"slices"
)

// score is one measurement of one rival in one setting. What could not be measured, for want of hand-overs say,
// is not a number.
type score struct {
	seconds   float64
	acquires  float64 // per second
	handOvers float64 // per second: acquisitions by another goroutine than the last holder's
	abroad    float64 // share of the hand-overs that went to another Locker or process
	p50, p99  float64 // µs of a hand-over, from before the release to after the acquire
	worst     float64 // µs that somebody waited
	fair      float64 // Jain's index over the goroutines' acquisitions: 1 when all are equal, 1/n when one has all
	fairEach  float64 // over those of the Lockers or processes
	trip      float64 // µs of a PING, of the same client at its best
	commands  float64 // sent by the clients, per hand-over
	script    float64 // µs of Redis per EVALSHA
	failures  int
	reason    string // of one of them
	clashes   int
}

func (s score) trouble() (int, string) { return s.failures, s.reason }

// turn is a hold and whose it was.
type turn struct {
	hold
	goroutine, locker int
}

// judge looks at what happened from from to to; at failures and clashes also outside.
func judge(diaries []diary, from, to int64) score {
	var s score
	turns := arrange(diaries)
	byGoroutine := make([]float64, len(diaries))
	byLocker := map[int]float64{}
	for i, d := range diaries {
		byGoroutine[i], byLocker[d.Locker] = 0, 0
		s.failures, s.clashes = s.failures+d.Failures, s.clashes+d.Clashes
		s.reason = cmp.Or(s.reason, d.Reason)
		if d.Waiting != 0 {
			s.worst = max(s.worst, float64(to-d.Waiting)/1e3)
		}
	}

	var latencies []float64
	abroad, last := 0, int64(math.MinInt64)
	for i, t := range turns {
		if t.Acquired < last {
			s.clashes++
		}
		last = max(last, t.Released)
		if t.Acquired < from || t.Acquired >= to {
			continue
		}
		byGoroutine[t.goroutine]++
		byLocker[t.locker]++
		s.acquires++
		s.worst = max(s.worst, float64(t.Acquired-t.Asked)/1e3)
		if i == 0 || t.goroutine == turns[i-1].goroutine && len(diaries) > 1 {
			continue
		}
		latencies = append(latencies, float64(t.Acquired-turns[i-1].Released)/1e3)
		if t.locker != turns[i-1].locker {
			abroad++
		}
	}

	s.seconds = float64(to-from) / 1e9
	s.acquires /= s.seconds
	s.handOvers = float64(len(latencies)) / s.seconds
	s.abroad = float64(abroad) / float64(len(latencies))
	slices.Sort(latencies)
	s.p50, s.p99 = math.NaN(), math.NaN()
	if len(latencies) > 0 {
		s.p50, s.p99 = quantile(latencies, 0.50), quantile(latencies, 0.99)
	}
	s.fair, s.fairEach = jain(byGoroutine), jain(values(byLocker))
	return s
}

// with adds what r's clients and the server saw meanwhile.
func (s score) with(r rival, trip float64, sent stats) score {
	all, _ := sent.split(r.sends)
	s.trip = trip
	s.commands = float64(all.calls) / s.seconds / s.handOvers
	s.script = float64(sent["evalsha"].usec) / float64(sent["evalsha"].calls)
	return s
}

// arrange puts all holds in the order of their acquisition.
func arrange(diaries []diary) []turn {
	var turns []turn
	for i, d := range diaries {
		for _, h := range d.Holds {
			turns = append(turns, turn{h, i, d.Locker})
		}
	}
	slices.SortFunc(turns, func(a, b turn) int { return cmp.Compare(a.Acquired, b.Acquired) })
	return turns
}

func values(m map[int]float64) []float64 {
	var list []float64
	for _, v := range m {
		list = append(list, v)
	}
	return list
}

// jain is the index of R. Jain, D. Chiu and W. Hawe, "A Quantitative Measure of Fairness and Discrimination for
// Resource Allocation in Shared Computer Systems", DEC TR-301, 1984.
func jain(shares []float64) float64 {
	sum, squares := 0.0, 0.0
	for _, x := range shares {
		sum, squares = sum+x, squares+x*x
	}
	return sum * sum / (float64(len(shares)) * squares)
}
