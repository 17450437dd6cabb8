package holdfast_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/model"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// What internal/model searches is what the scripts do: random calls get the same answers from both and leave the
// same behind, and the same grants are told. Without one of its rules the model does something else.
func TestModelDoesWhatTheScriptsDo(t *testing.T) {
	t.Parallel()
	rules := []model.Rule{
		model.Whole, model.RenewNeverShortens, model.AcquireNeverShortens, model.TaintedLeavesTombstone,
		model.TombstoneBarsLock, model.TombstoneBarsLine, model.ForgetFreesItsOwn, model.FenceRemembersLosses,
		model.ResentAcquireGetsItsToken, model.TokensFollowTheClock, model.TokensFollowTheLast,
		model.BlocksAreReserved, model.DeadArePruned, model.FreeLockGoesToTheLine, model.TryWaitsItsTurn,
		model.LookKeepsThePlace, model.GrantLeavesTheLine, model.ForgetLeavesTheLine, model.WaitingIsMarked,
	}
	if underRace {
		rules = rules[:1]
	}
	compareRules(t, rules, model.Whole, 6, 100, func(t *testing.T, b *servertest.Bubble, seed uint64, rule model.Rule) (log []string, difference string) {
		m := newModelled(t, b, rand.New(rand.NewPCG(seed, 1)))
		m.p.Without = rule
		return m.run()
	})
}

// compareRules compares a model with the scripts in schedules that depend on a seed. The model as a whole does what they do.
// Without one of its rules it does something else, of which compare returns the first, in one of so many schedules.
func compareRules[R comparable](t *testing.T, rules []R, whole R, seeds, without uint64,
	compare func(t *testing.T, b *servertest.Bubble, seed uint64, rule R) (log []string, difference string),
) {
	for _, rule := range rules {
		n := without
		if rule == whole {
			n = seeds
		}
		var difference string
		for seed := uint64(0); seed < n && difference == ""; seed++ {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				var log []string
				if log, difference = compare(t, b, seed, rule); difference != "" && rule == whole {
					t.Errorf("seed %d:\n%s\n%s", seed, strings.Join(log, "\n"), difference)
				}
			})
		}
		if difference == "" && rule != whole {
			t.Errorf("without %q: no difference to the scripts", fmt.Sprint(rule))
		}
		t.Logf("without %q: %s", fmt.Sprint(rule), difference)
	}
}

// The same of owners that name limits: one, two, three, or none.
func TestModelDoesWhatTheScriptsDoWithLimits(t *testing.T) {
	t.Parallel()
	rules := []model.Rule{
		model.Whole, model.LimitCountsItself, model.LeastLimitCounts, model.ReadersAreMany, model.BlocksAreReserved, model.CapIsLowered, model.CapIsRecounted, model.NextIsALowerBound,
		model.DeadMakeRoom, model.DeadAreLost, model.KeyOutlivesEntries, model.KeyIsLeftToOthers, model.SessionBeginsEmpty,
		model.SessionLossesCount, model.ReleaseNamesItsToken, model.SharedAreNotLive, model.ReleaseServesAll, model.EntrantServes,
		model.LeaverServes, model.NewcomerWaits, model.RefusalTellsFirstEnd, model.RenewNeverShortens, model.AcquireNeverShortens,
		model.TaintedLeavesTombstone, model.TombstoneBarsLock, model.ReleaseAsksFence, model.SinceNeverFalls,
	}
	whole := uint64(12)
	if underRace {
		rules, whole = rules[:1], 3
	}
	compareRules(t, rules, model.Whole, whole, 1000, func(t *testing.T, b *servertest.Bubble, seed uint64, rule model.Rule) (log []string, difference string) {
		m := newModelled(t, b, rand.New(rand.NewPCG(seed, 2)))
		m.p.Without, m.p.Fence = rule, model.Forever
		for o := range m.limits {
			m.limits[o] = []uint8{1, 2, 2, 3, 3, model.Unlimited}[m.rnd.IntN(6)]
		}
		return m.run()
	})
}

// modelled is a server and the model of it, in which a tick is a second.
type modelled struct {
	t       *testing.T
	b       *servertest.Bubble
	rdb     *redis.Client
	rnd     *rand.Rand
	p       model.Params
	s       model.Server
	zero    int64 // TIME, in µs, at the model's time 0
	skew    time.Duration
	tokens  []model.Token
	limits  [model.MaxOwners + 1]uint8 // of each owner; 0 is 1
	inboxes map[model.Owner]*redis.PubSub
	log     []string

	difference string // the first
}

func newModelled(t *testing.T, b *servertest.Bubble, rnd *rand.Rand) *modelled {
	m := &modelled{t: t, b: b, rdb: b.Client(), rnd: rnd, inboxes: map[model.Owner]*redis.PubSub{}}
	m.p = model.Params{Lease: 4, First: 2, Entry: 3, Fence: 3, Block: model.Token(1 + rnd.IntN(3)), PerTick: 1_000_000}
	m.s.Now = 10
	m.zero = time.Now().UnixMicro() - 10_000_000
	for o := model.Owner(1); o <= model.MaxOwners; o++ {
		if rnd.IntN(3) == 0 {
			m.s.Deaf |= 1 << o
			continue
		}
		m.inboxes[o] = m.rdb.Subscribe(background, inboxOf(o))
		if _, err := m.inboxes[o].Receive(background); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func ownerID(o model.Owner) string { return fmt.Sprint("o", o) }
func inboxOf(o model.Owner) string { return fmt.Sprint("inbox", o) }
func ms(t model.Time) int64        { return int64(t) * 1000 }
func (m *modelled) names(o model.Owner) []any {
	return []any{"k", fenceKey, "{k}:~gone:" + ownerID(o), lineKey, waitKey, ownerID(o)}
}

// real is a token of the model as Redis knows it.
func (m *modelled) real(t model.Token) int64 {
	if t == 0 {
		return 0
	}
	return m.zero + int64(t)
}

// run does 150 things, up to the first difference.
func (m *modelled) run() (log []string, difference string) {
	for i := 0; i < 150 && m.difference == ""; i++ {
		m.step()
	}
	for _, sub := range m.inboxes {
		_ = sub.Close()
	}
	return m.log, m.difference
}

// step does something at random in both.
func (m *modelled) step() {
	o := model.Owner(1 + m.rnd.IntN(model.MaxOwners))
	switch n := m.rnd.IntN(20); {
	case n < 3:
		m.note("a tick")
		time.Sleep(time.Second)
		m.s.Now++
	case n < 4 && m.rnd.IntN(10) == 0: // not back: miniredis does not know by what clock a key expires
		m.skew += 2 * time.Second
		m.note("the clock is set forward")
		m.b.Skew(m.skew)
		m.s.Now += 2
	case n < 4 && m.rnd.IntN(5) == 0 && m.limits[0] > 0:
		m.note("an operator's DEL")
		m.rdb.Del(background, "k")
		m.s.Owner, m.s.End = 0, 0
	case n < 12:
		m.acquire(o, m.rnd.IntN(4) > 0, m.rnd.IntN(4) > 0)
	case n < 18:
		m.forget(o)
	default:
		lease := model.Time(m.rnd.IntN(7))
		m.note("%s renews to %d", ownerID(o), lease)
		var got any
		if m.limits[o] > 1 {
			got = m.ask(holdfast.KeepScript, "k", fenceKey, heldKey, ownerID(o), ms(lease))
		} else {
			got = m.ask(holdfast.RenewScript, "k", ownerID(o), ms(lease))
		}
		if want := ms(m.s.Renew(&m.p, o, lease)); got != want {
			m.differ("renew: %v, the model says %d", got, want)
		}
	}
	m.compare()
}

func (m *modelled) acquire(o model.Owner, waits, told bool) {
	m.note("%s acquires, waits %v, told %v", ownerID(o), waits, told)
	plan := fmt.Sprint(ms(m.p.Lease), " ", ms(m.p.Lease)+ms(m.p.Fence), " ", m.p.Block)
	if waits {
		inbox := "-"
		if told {
			inbox = inboxOf(o)
		}
		plan = fmt.Sprint(plan, " ", ms(m.p.Entry), " ", ms(m.p.First), " 1: 1 ", inbox)
	}
	if m.limits[o] > 1 {
		m.permit(o, plan, waits, told)
		return
	}
	reply := m.ask(holdfast.AcquireScript, append(m.names(o), plan)...)
	got := fmt.Sprint(reply)
	a, g := m.s.Acquire(&m.p, o, 1, waits, told)
	want := "-1"
	switch {
	case a.Token != 0:
		want = fmt.Sprint(m.real(a.Token))
		m.tokens = append(m.tokens, a.Token)
	case !a.Gone:
		fence := m.fence()
		deaf := 0
		if a.Deaf {
			deaf = 1
		}
		if m.limits[0] > 0 {
			m.refused(reply, a)
			got, want = "", ""
			break
		}
		want = fmt.Sprint([]any{0, ms(a.Left), ownerID(a.Holder), a.Place, m.real(model.Token(a.Now) * m.p.PerTick), fence, deaf})
		if last, _, _ := strings.Cut(fence, " "); a.Last != 0 && last != fmt.Sprint(m.real(a.Last)) {
			m.differ("the last token is %d in the model's answer and %s in its fence", m.real(a.Last), last)
		}
	}
	if got != want {
		m.differ("acquire: %s, the model says %s", got, want)
	}
	m.told(g)
}

// permit is acquire for an owner that names a limit.
func (m *modelled) permit(o model.Owner, plan string, waits, told bool) {
	args := m.names(o)
	args = append(append(args[:5:5], heldKey), args[5], plan, limitOf(m.limits[o]))
	reply := m.ask(holdfast.PermitScript, args...)
	a, g := m.s.Acquire(&m.p, o, m.limits[o], waits, told)
	switch {
	case a.Token != 0:
		m.tokens = append(m.tokens, a.Token)
		m.same("permit", reply, m.real(a.Token))
	case a.Gone:
		m.same("permit", reply, -1)
	default:
		m.refused(reply, a)
	}
	m.told(g)
}

func limitOf(limit uint8) int {
	if limit == model.Unlimited {
		return 1 << 20
	}
	return int(limit)
}

// refused compares what a refusal tells, but for the marks of the fence.
func (m *modelled) refused(reply any, a model.Acquired) {
	r, ok := reply.([]any)
	if !ok || len(r) < 7 {
		m.differ("acquire: %v, the model refuses", reply)
		return
	}
	inside, deaf := any(1), 0
	if len(r) == 8 {
		inside = r[7]
	}
	if a.Deaf {
		deaf = 1
	}
	m.same("refusal", fmt.Sprint(r[1], r[2], r[3], r[6], inside), fmt.Sprint(ms(a.Left), valueOf(a.Holder), a.Place, deaf, a.Inside))
}

func valueOf(o model.Owner) string {
	if o&model.Several != 0 {
		return "=" + ownerID(o&^model.Several)
	}
	return ownerID(o)
}

func (m *modelled) forget(o model.Owner) {
	token, tomb := model.Token(0), 0
	if len(m.tokens) > 0 && m.rnd.IntN(4) > 0 {
		token = m.tokens[max(0, len(m.tokens)-1-m.rnd.IntN(6))]
	}
	if m.rnd.IntN(8) == 0 {
		tomb = 60_000
	}
	m.note("forget %s with %d, tombstone %d", ownerID(o), m.real(token), tomb)
	args, script := m.names(o), holdfast.ForgetScript
	if m.limits[o] > 1 {
		args, script = append(append(args[:5:5], heldKey), args[5]), holdfast.ReturnScript
	}
	got := m.ask(script, append(args, m.real(token), ms(m.p.Fence), tomb)...)
	want, g := m.s.Forget(&m.p, o, token, tomb > 0)
	if got != int64(want) {
		m.differ("forget: %v, the model says %d", got, want)
	}
	m.told(g)
	if tomb > 0 && m.rnd.IntN(2) == 0 { // or soon nobody could acquire any more
		m.rdb.Del(background, "{k}:~gone:"+ownerID(o))
		m.s.Gone &^= 1 << o
	}
}

// told expects the messages of grants. That there are no others shows when the next is read.
func (m *modelled) told(grants []model.Grant) {
	for _, g := range grants {
		m.tokens = append(m.tokens, g.Token)
		want := fmt.Sprintf("%s\n%d\n%d\nk", ownerID(g.Owner), m.real(g.Token), m.real(model.Token(g.Time)*m.p.PerTick))
		msg, err := m.inboxes[g.Owner].ReceiveTimeout(background, time.Millisecond)
		if got, ok := msg.(*redis.Message); err != nil || !ok || got.Payload != want {
			m.differ("pushed: %v, %v; the model says %s", msg, err, want)
		}
	}
}

// compare looks at all that is in Redis.
func (m *modelled) compare() {
	m.s.Expire()
	s := &m.s
	holder, gone, line, waits := "", "", "", map[string]string{}
	left, fenceLeft := time.Duration(-2), time.Duration(-2)
	if s.Owner != 0 {
		holder, left = valueOf(s.Owner), time.Duration(s.End-s.Now)*time.Second
	}
	if s.Fence.Last != 0 {
		fenceLeft = time.Duration(s.FenceEnd-s.Now) * time.Second
	}
	for _, e := range s.Line[:s.Length] {
		line += " " + ownerID(e.Owner)
		waits[ownerID(e.Owner)] = fmt.Sprint((m.zero + int64(e.Expiry)*1_000_000) / 1000)
	}
	for o := model.Owner(1); o <= model.MaxOwners; o++ {
		if s.Gone&(1<<o) != 0 {
			gone += " " + ownerID(o)
		}
	}
	m.same("holder", m.rdb.Get(background, "k").Val(), holder)
	m.same("lease", ticks(m.rdb.PTTL(background, "k").Val()), left)
	if m.limits[0] == 0 {
		m.same("fence", m.rdb.Get(background, fenceKey).Val(), m.fence())
		m.same("life of the fence", ticks(m.rdb.PTTL(background, fenceKey).Val()), fenceLeft)
	} else {
		unmarked := strings.TrimSuffix(strings.TrimSuffix(m.rdb.Get(background, fenceKey).Val(), " w"), " s")
		m.same("fence", unmarked, strings.TrimSuffix(m.fence(), " w"))
		m.session()
	}
	members := ""
	for _, o := range lineOf(m.rdb) {
		members += " " + o
	}
	m.same("line", members, line)
	entries := m.rdb.HGetAll(background, waitKey).Val()
	for o, e := range entries {
		entries[o], _, _ = strings.Cut(e, " ")
	}
	m.same("entries", entries, waits)
	tombs := ""
	for o := model.Owner(1); o <= model.MaxOwners; o++ {
		if m.rdb.Exists(background, "{k}:~gone:"+ownerID(o)).Val() == 1 {
			tombs += " " + ownerID(o)
		}
	}
	m.same("tombstones", tombs, gone)
}

// session compares the hash of several holders, where it is about the lock.
func (m *modelled) session() {
	h := &m.s.Held
	got := m.rdb.HGetAll(background, heldKey).Val()
	if m.s.Owner == 0 || m.s.Owner&model.Several == 0 || h.Of != m.s.Owner {
		return
	}
	at := func(t model.Time) int64 { return (m.zero + int64(t)*1_000_000) / 1000 }
	want := map[string]string{"of": valueOf(h.Of), "cap": fmt.Sprintf("%d %d %d 0", limitOf(h.Cap), h.Mult, at(h.Next))}
	for i, end := range h.Ends {
		if end != 0 {
			want["@"+ownerID(model.Owner(i+1))] = fmt.Sprintf("%d %d %d", at(end), limitOf(h.Limits[i]), m.real(h.Tokens[i]))
		}
	}
	m.same("session", got, want)
}

// ticks rounds up; the life of a fence counts milliseconds where its last token is ahead of the clock.
func ticks(d time.Duration) time.Duration {
	if d < 0 {
		return d
	}
	return (d + time.Second - 1).Truncate(time.Second)
}

func (m *modelled) fence() string {
	f := &m.s.Fence
	if f.Last == 0 {
		return ""
	}
	text := fmt.Sprint(m.real(f.Last), " ", m.real(f.Live), " ", m.real(f.Since))
	for _, t := range f.Lost {
		if t != 0 {
			text += fmt.Sprint(" ", m.real(t))
		}
	}
	if f.Waits {
		text += " w"
	}
	return text
}

func (m *modelled) same(what string, got, want any) {
	if fmt.Sprint(got) != fmt.Sprint(want) {
		m.differ("%s: %v, the model says %v", what, got, want)
	}
}

func (m *modelled) differ(format string, args ...any) {
	if m.difference == "" {
		m.difference = fmt.Sprintf(format, args...)
	}
}

func (m *modelled) ask(s holdfast.Script, args ...any) any {
	v, err := s.Run(background, m.rdb, args...)
	if err != nil {
		m.t.Fatal(err)
	}
	return v
}

func (m *modelled) note(format string, args ...any) {
	m.log = append(m.log, fmt.Sprintf("%3d  ", m.s.Now)+fmt.Sprintf(format, args...))
}
