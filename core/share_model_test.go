package holdfast_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/model/schedule"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// What internal/model/schedule proves of the line is true of the scripts: random calls let the same waiters in, in the same
// order, and leave the same tags behind. Without one of its rules the model does something else.
func TestScheduleDoesWhatTheScriptsDo(t *testing.T) {
	t.Parallel()
	rules := []schedule.Rule{
		schedule.Whole, schedule.SharesTakeTurns, schedule.LeaversPayNothing, schedule.ClockRuns, schedule.ClockKnowsWeights,
		schedule.ClockKeepsFraction, schedule.FinishIsRemembered, schedule.FinishIsForgotten, schedule.NewcomerStartsAtV,
		schedule.CrowdStartsLater, schedule.PlainKeepsClaims, schedule.EmptyForgetsAll, schedule.PassedOverMoveUp,
		schedule.UnheardArePassed, schedule.UnfitHoldUpAll, schedule.ResendKeepsPlace, schedule.DeadAreRemoved,
		schedule.LeastLimitCounts, schedule.JoinerMayBeNext,
	}
	whole := uint64(20)
	if underRace {
		rules, whole = rules[:1], 4
	}
	compareRules(t, rules, schedule.Whole, whole, 300, func(t *testing.T, b *servertest.Bubble, seed uint64, rule schedule.Rule) (log []string, difference string) {
		s := newScheduled(t, b, rand.New(rand.NewPCG(seed, 3)))
		s.lock.Without = rule
		for i := 0; i < 200 && s.difference == ""; i++ {
			s.step()
		}
		for _, sub := range s.inboxes {
			_ = sub.Close()
		}
		return s.log, s.difference
	})
}

// scheduled is a server and the model of a lock on it.
type scheduled struct {
	t       *testing.T
	rdb     *redis.Client
	rnd     *rand.Rand
	lock    schedule.Lock
	kinds   map[string]schedule.Waiter // what each owner asks for
	inboxes map[string]*redis.PubSub
	joined  time.Time // when the latest joined
	log     []string

	difference string // the first
}

// shareEntry is how long a place in line is kept, and shareLease a hold.
const (
	shareEntry = 3 * time.Second
	shareLease = 5 * time.Second
)

func newScheduled(t *testing.T, b *servertest.Bubble, rnd *rand.Rand) *scheduled {
	s := &scheduled{t: t, rdb: b.Client(), rnd: rnd, kinds: map[string]schedule.Waiter{}, inboxes: map[string]*redis.PubSub{}}
	s.lock.Lease, s.lock.Deaf = shareLease.Microseconds(), map[string]bool{}
	names := []string{"", "a", "a", "b", "b+", "c"}[rnd.IntN(3):]
	for i := range 12 {
		name := names[rnd.IntN(len(names))]
		w := schedule.Waiter{Owner: fmt.Sprint("o", i), Share: name, Weight: 1, Limit: []int{1, 2, 2, 3}[rnd.IntN(4)]}
		if name != "" && rnd.IntN(2) == 0 {
			w.Weight = []int64{2, 3, 7, 100}[rnd.IntN(4)]
		}
		s.kinds[w.Owner] = w
	}
	return s
}

func (s *scheduled) step() {
	s.lock.Now = time.Now().UnixMicro()
	if time.Since(s.joined) >= shareEntry { // the keys have expired
		s.lock.Line = schedule.Line{Without: s.lock.Without}
	}
	owner := fmt.Sprint("o", s.rnd.IntN(len(s.kinds)))
	switch n := s.rnd.IntN(20); {
	case n < 3:
		d := time.Duration(1+s.rnd.IntN(100)) * time.Millisecond
		if s.rnd.IntN(12) == 0 {
			d *= 20
		}
		s.note("%v pass", d)
		time.Sleep(d)
		return
	case n < 4:
		if sub := s.inboxes[owner]; sub != nil {
			s.note("%s can be told no more", owner)
			_ = sub.Close()
			synctest.Wait() // until the server knows
			delete(s.inboxes, owner)
			s.lock.Deaf[owner] = true
		}
		return
	case n < 14:
		s.acquire(s.kinds[owner])
	default:
		s.note("%s ends", owner)
		names := []any{"k", fenceKey, "{k}:~gone:" + owner, lineKey, waitKey}
		s.run(holdfast.ReturnScript, append(names, heldKey, owner, 0, 60_000, 0)...)
		if s.alone(owner) {
			s.lock.Leave(owner)
		} else {
			s.told("", s.lock.Forget(owner))
		}
	}
	s.compare()
}

// alone reports whether somebody else holds the lock and lets nobody in. Then no script looks for the dead in line.
func (s *scheduled) alone(self string) bool {
	for _, h := range s.lock.Inside {
		if h.Ends > s.lock.Now && h.Limit == 1 && h.Owner != self {
			return true
		}
	}
	return false
}

func (s *scheduled) acquire(w schedule.Waiter) {
	if s.inboxes[w.Owner] == nil && s.rnd.IntN(2) == 0 {
		s.inboxes[w.Owner] = s.rdb.Subscribe(background, w.Owner)
		if _, err := s.inboxes[w.Owner].Receive(background); err != nil {
			s.t.Fatal(err)
		}
	}
	s.note("%s of %q acquires, limit %d, weight %d", w.Owner, w.Share, w.Limit, w.Weight)
	s.lock.Deaf[w.Owner] = false // one that has no inbox looks on its own
	plan := fmt.Sprintf("%d %d 1 %d %d %d:%s 1 %s", shareLease.Milliseconds(), shareLease.Milliseconds()+60_000,
		shareEntry.Milliseconds(), shareLease.Milliseconds(), w.Weight, w.Share, w.Owner)
	names := []any{"k", fenceKey, "{k}:~gone:" + w.Owner, lineKey, waitKey}
	var reply any
	if w.Limit > 1 {
		reply = s.run(holdfast.PermitScript, append(names, heldKey, w.Owner, plan, w.Limit)...)
	} else {
		reply = s.run(holdfast.AcquireScript, append(names, w.Owner, plan)...)
	}
	w.Expiry = s.lock.Now/1000*1000 + shareEntry.Microseconds()
	held := func() bool {
		return slices.ContainsFunc(s.lock.Inside, func(h schedule.Holder) bool { return h.Owner == w.Owner && h.Ends > s.lock.Now })
	}
	before := held()
	if before { // a look of one that is inside lengthens its lease, which the model does not
		for i, h := range s.lock.Inside {
			if h.Owner == w.Owner {
				s.lock.Inside[i].Ends = s.lock.Now + s.lock.Lease
			}
		}
	}
	var granted []*schedule.Waiter
	if s.alone(w.Owner) {
		s.lock.Join(s.lock.Now, w)
	} else {
		granted = s.lock.Acquire(w)
	}
	if len(s.lock.Shares) > 0 {
		if _, waits := s.lock.Find(w.Owner); waits != nil {
			s.joined = time.Now()
		}
	}
	_, got := reply.(int64)
	s.same("the call has the lock", got, held())
	if !before {
		s.told(w.Owner, granted)
	}
}

// told compares the messages with the waiters that were let in, but for the one that asked.
func (s *scheduled) told(self string, granted []*schedule.Waiter) {
	for _, w := range granted {
		sub := s.inboxes[w.Owner]
		if w.Owner == self || sub == nil {
			continue // it looks on its own
		}
		msg, err := sub.ReceiveTimeout(background, time.Millisecond)
		if got, ok := msg.(*redis.Message); err != nil || !ok || !strings.HasPrefix(got.Payload, w.Owner+"\n") {
			s.differ("%s: got %v, %v; the model lets it in", w.Owner, msg, err)
		}
	}
}

// compare looks at the line in Redis.
func (s *scheduled) compare() {
	l := &s.lock.Line
	waits, tags := map[string]string{}, map[string]string{}
	got := map[string]string{}
	for _, m := range s.rdb.ZRange(background, lineKey, 0, -1).Val() {
		if share, rest, ok := strings.Cut(m, " "); ok {
			got[share] += " " + rest
		}
	}
	for _, share := range l.Shares {
		for _, w := range share.Waiters {
			waits[share.Name] += fmt.Sprintf(" %016d%s", w.At, w.Owner)
		}
		if l.Marked {
			tags["="+share.Name] = fmt.Sprintf("%d %016d", share.Tag, share.Head)
		}
	}
	s.same("line", got, waits)
	for name, tag := range l.Finish {
		tags["-"+name] = fmt.Sprint(tag)
	}
	hash := s.rdb.HGetAll(background, waitKey).Val()
	if l.Marked {
		v, _ := strconv.ParseFloat(hash["v"], 64)
		s.same("virtual time", v, l.V)
	} else if hash["v"] != "" {
		s.differ("there are shares, in the model there are none")
	}
	maps.DeleteFunc(hash, func(name, _ string) bool { return name[0] != '=' })
	scores := map[string]string{}
	for _, z := range s.rdb.ZRangeWithScores(background, "{k}:~share", 0, -1).Val() {
		if m := z.Member.(string); m[0] == '=' {
			scores["="+m[17:]] = fmt.Sprintf("%.0f %s", z.Score, m[1:17])
		} else {
			scores[m] = fmt.Sprintf("%.0f", z.Score-(1<<52))
		}
	}
	s.same("shares", scores, tags)
	maps.DeleteFunc(tags, func(name, _ string) bool { return name[0] != '=' })
	s.same("tags", hash, tags)
	for _, key := range s.rdb.Keys(background, "*").Val() {
		if s.rdb.PTTL(background, key).Val() < 0 {
			s.differ("%s never expires", key)
		}
	}
}

func (s *scheduled) run(script holdfast.Script, args ...any) any {
	v, err := script.Run(background, s.rdb, args...)
	if err != nil {
		s.t.Fatal(err)
	}
	return v
}

func (s *scheduled) note(format string, args ...any) {
	s.log = append(s.log, time.Now().Format("05.000 ")+fmt.Sprintf(format, args...))
}

func (s *scheduled) same(what string, got, want any) {
	if fmt.Sprint(got) != fmt.Sprint(want) {
		s.differ("%s: %v, the model says %v", what, got, want)
	}
}

func (s *scheduled) differ(format string, args ...any) {
	if s.difference == "" {
		s.difference = fmt.Sprintf(format, args...)
	}
}
