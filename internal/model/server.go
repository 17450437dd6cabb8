package model

// Time is in ticks. Redis and each process count them by a clock of their own.
type Time = int8

// Token is a fencing token, or 0. A tick has [Params.PerTick] of them, as a second has a million.
type Token = int32

// Owner is an owner id, from 1; 0 is nobody.
type Owner = uint8

// Forever is a time that never comes.
const Forever Time = 127

// MaxOwners is how many owner ids there are.
const MaxOwners = 6

// Values of a lock that are not an owner id.
const (
	Foreign Owner = 1 << 4 // of a client that knows nothing of all this
	Several Owner = 1 << 7 // beside the owner id of the one who began the session: several have the lock
)

// Unlimited is the limit of a reader.
const Unlimited uint8 = 255

// Params are the arguments that all calls of the scripts have in common, and the rule that is broken.
type Params struct {
	Lease   Time // that an acquire asks for
	First   Time // lease of a grant
	Entry   Time // how long a place in line lives without another look
	Fence   Time // how long the fence outlives a lease
	Memory  int  // how many losses the fence remembers, 0 for 8
	Block   Token
	PerTick Token
	Passed  Token // those of the time that Now does not show
	Without Rule
}

// Server is what Redis keeps for one lock. Its zero value is the empty Redis.
type Server struct {
	Gone     uint16 // tombstones, a bit for each owner
	Deaf     uint16 // owners whose inbox nobody reads, as PUBSUB tells
	Now      Time   // Redis' clock
	Owner    Owner  // the value of the lock
	End      Time   // of the lease
	FenceEnd Time
	LineEnd  Time
	Length   uint8 // of the line
	Line     [MaxOwners]Place
	Fence    Fence
	Held     Session
}

// Place is one in the waiting line.
type Place struct {
	Owner  Owner
	Told   bool // is to be told through its inbox
	Limit  uint8
	Expiry Time
}

// Fence is the fence of the lock; without a Last there is none.
type Fence struct {
	Last, Live, Since Token
	Lost              [8]Token
	Waits             bool // somebody may be in line
}

// Grant is a message to an inbox.
type Grant struct {
	Owner Owner
	Token Token
	Time  Time
}

// Acquired is the answer to an acquire: a token, or the holder.
type Acquired struct {
	Token  Token
	Gone   bool // undone before
	Holder Owner
	Left   Time
	Place  int
	Now    Time
	Last   Token
	Deaf   bool // it waits, and its inbox is one that nobody reads
	Inside int  // how many have it
}

// How a forget is answered, as in core.
const (
	ForgetLost     = 0
	ForgetReleased = 1
	ForgetAlready  = 2
	ForgetUnknown  = 3
)

func bit(o Owner) uint16 { return 1 << o }

// Expire drops what is over by the server's clock.
func (s *Server) Expire() {
	if s.Owner != 0 && s.Now >= s.End {
		s.Owner, s.End = 0, 0
	}
	if s.Fence.Last != 0 && s.Now >= s.FenceEnd {
		s.Fence, s.FenceEnd = Fence{}, 0
	}
	if s.Length != 0 && s.Now >= s.LineEnd {
		s.Length, s.LineEnd, s.Line = 0, 0, [MaxOwners]Place{}
	}
	if h := &s.Held; h.Of != 0 && h.End != Forever && s.Now >= h.End {
		*h = Session{}
	}
}

// Acquire is acquire.lua, for a limit of 1 or more. With waits it joins the line; told says whether through the inbox.
func (s *Server) Acquire(p *Params, id Owner, limit uint8, waits, told bool) (r Acquired, g []Grant) {
	s.Expire()
	gone := s.Gone&bit(id) != 0
	if gone && p.Without != TombstoneBarsLock && (p.Without != TombstoneBarsLine || s.Owner == 0) {
		return Acquired{Gone: true}, g
	}
	if s.Owner == id {
		if end := s.Now + p.Lease; s.End < end || p.Without == AcquireNeverShortens {
			s.End = end
		}
		if s.Fence.Live != 0 && p.Without != ResentAcquireGetsItsToken {
			return Acquired{Token: s.Fence.Live}, g
		}
		return Acquired{Token: s.draw(p, false, s.Length > 0)}, g
	}
	if s.entry(id) {
		if s.Held.Ends[id-1] > s.Now {
			s.prolong(p, id, p.Lease, p.Without == AcquireNeverShortens)
			return Acquired{Token: s.Held.Tokens[id-1]}, g
		}
		s.bury(p)
	}

	next := s.Owner == 0 || s.shared() // no waiter comes before this one
	queued := s.Length > 0 && !s.fast(p, limit)
	if next && queued && s.Line[0].Owner != id && p.Without != FreeLockGoesToTheLine && (waits || p.Without != TryWaitsItsTurn) {
		g, next = s.serve(p, id, false)
		if p.Without == NewcomerWaits && s.shared() {
			next = true
		}
	}
	if !next || !s.admits(p, limit) {
		if gone && p.Without != TombstoneBarsLine {
			return Acquired{Gone: true}, g
		}
		return s.refuse(p, id, limit, waits, told), g
	}
	s.leave(id)
	r.Token = s.enter(p, id, limit, p.Lease, queued, false)
	if limit > 1 && p.Without != EntrantServes {
		more, _ := s.serve(p, 0, false)
		g = append(g, more...)
	}
	return r, g
}

// fast tells whether an acquire of a free lock looks at nothing but the fence, see take.lua.
func (s *Server) fast(p *Params, limit uint8) bool {
	f := &s.Fence
	return s.Owner == 0 && limit == 1 && p.Block == 1 && f.Last != 0 && !f.Waits && f.Live == 0 && f.Lost[0] == 0 && f.Last < s.tokenTime(p)
}

// refuse answers that somebody has the lock, after joining the line where that was asked for.
func (s *Server) refuse(p *Params, id Owner, limit uint8, waits, told bool) Acquired {
	r := Acquired{Holder: s.Owner, Left: s.End - s.Now, Now: s.Now, Last: s.Fence.Last, Inside: 1}
	if s.shared() {
		r.Inside = s.Held.inside()
		if p.Without != RefusalTellsFirstEnd {
			r.Left = s.Held.Next - s.Now
		}
	}
	if !waits {
		return r
	}
	i := s.find(id)
	if i >= 0 && p.Without == LookKeepsThePlace {
		s.remove(i)
		i = -1
	}
	if i < 0 {
		i = int(s.Length)
		s.Length++
	}
	s.Line[i] = Place{Owner: id, Told: told && s.Deaf&bit(id) == 0, Limit: limit, Expiry: s.Now + p.Entry}
	s.LineEnd = s.Now + p.Entry
	s.Fence.Waits = s.Fence.Last != 0 && p.Without != WaitingIsMarked
	r.Place = i + 1
	r.Deaf = told && s.Deaf&bit(id) != 0
	return r
}

// Forget is forget.lua; tomb says whether to leave a tombstone.
func (s *Server) Forget(p *Params, id Owner, token Token, tomb bool) (reply int, g []Grant) {
	s.Expire()
	held := s.Owner == id || s.Owner != 0 && p.Without == ForgetFreesItsOwn
	if held {
		s.Owner, s.End = 0, 0
	}
	if tomb && p.Without != TaintedLeavesTombstone {
		s.Gone |= bit(id)
	}
	had, was := s.depart(p, id)
	if !held && p.Without != ForgetLeavesTheLine {
		s.leave(id)
	}

	before := s.Fence
	after, keeps := before, true // the life that the fence has
	// See fastforget.lua.
	fast := held && !tomb && token != 0 && before.Live == token && !before.Waits && before.Lost[0] == 0
	if held {
		if after.Live != token || token == 0 {
			keeps = false
			after.Last = max(after.Last, token)
			if after.Since == 0 {
				after.Since = token
			}
		}
		after.Live, after.Waits = 0, s.Length > 0 && !fast
	}
	write := func() {
		if s.Fence = after; !keeps {
			s.FenceEnd = s.fenceEnd(p, 0, after.Last)
		}
	}
	if held && after.Last != 0 {
		write()
	}
	if !fast && (s.Owner == 0 || s.shared() && p.Without != LeaverServes) {
		if g, _ = s.serve(p, 0, held); s.Owner == 0 && held && after.Last != 0 {
			write()
		}
	}

	switch {
	case was && had != 0 && (token == 0 || token == had || p.Without == ReleaseNamesItsToken):
		return ForgetReleased, g
	case was:
		return ForgetLost, g
	case held && token != 0 && before.lost(token) && p.Without != FenceRemembersLosses:
		return ForgetLost, g
	case held:
		return ForgetReleased, g
	case token == 0:
		return ForgetLost, g
	case p.Without == ReleaseAsksFence:
		return ForgetLost, g
	case before.Last == 0 || token < before.Since || token > before.Last:
		return ForgetUnknown, g
	case token == before.Live || before.lost(token) && p.Without != FenceRemembersLosses:
		return ForgetLost, g
	}
	return ForgetAlready, g
}

// Renew is renew.lua. It returns how long the lease lasts, 0 where id does not have it.
func (s *Server) Renew(p *Params, id Owner, lease Time) Time {
	s.Expire()
	if s.Owner != id {
		if s.entry(id) && s.Held.Ends[id-1] > s.Now {
			return s.prolong(p, id, lease, p.Without == RenewNeverShortens)
		}
		if p.Without == RenewComparesSession && s.Owner != 0 && s.Held.Ends[id-1] > s.Now {
			return max(s.Held.Ends[id-1]-s.Now, lease)
		}
		return 0
	}
	if s.End < s.Now+lease || p.Without == RenewNeverShortens {
		s.End = s.Now + lease
	}
	return s.End - s.Now
}

// draw takes the next token from the fence and those reserved behind it, and stores what the fence then is. A tenure that
// is live there is lost when the next one begins; of a shared one the session tells that.
func (s *Server) draw(p *Params, shared, waits bool) Token {
	f := s.Fence
	now := s.tokenTime(p)
	token := max(f.Last+1, now)
	switch p.Without {
	case TokensFollowTheClock:
		token = f.Last + 1
	case TokensFollowTheLast:
		token = now
	}
	if f.Live != 0 {
		f.lose(p, f.Live)
	}
	f.Live, f.Last, f.Waits = token, token+p.Block-1, waits
	if shared && p.Without != SharedAreNotLive {
		f.Live = 0
	}
	if p.Without == BlocksAreReserved {
		f.Last = token
	}
	if f.Since == 0 {
		f.Since = token
	}
	s.Fence, s.FenceEnd = f, s.fenceEnd(p, p.Lease, f.Last)
	return token
}

// fenceEnd is when a fence is forgotten: it lives longer by as much as its last token is ahead of the clock.
func (s *Server) fenceEnd(p *Params, lease Time, last Token) Time {
	if p.Fence == Forever {
		return Forever
	}
	ahead := last - s.tokenTime(p)
	return s.Now + lease + p.Fence + Time(max(0, (ahead+p.PerTick-1)/p.PerTick))
}

func (s *Server) tokenTime(p *Params) Token { return Token(s.Now)*p.PerTick + p.Passed }

// lose records that a tenure ended without a release. Tenures that were let in together need not end in the order of
// their tokens: the one that is dropped for want of room is the oldest record, not always the smallest token.
func (f *Fence) lose(p *Params, token Token) {
	f.remember(token)
	n := p.Memory
	if n == 0 {
		n = len(f.Lost)
	}
	i := 0
	for i < n && f.Lost[i] != 0 {
		i++
	}
	if i == n {
		since := f.Lost[0] + 1
		if p.Without != SinceNeverFalls {
			since = max(f.Since, since)
		}
		f.Since = since
		copy(f.Lost[:], f.Lost[1:n])
		i--
	}
	f.Lost[i] = token
}

// remember makes a fence that knows of a token, if there is none: marked as if somebody waited, as nobody has looked.
func (f *Fence) remember(token Token) {
	if f.Last == 0 {
		*f = Fence{Since: token, Waits: true}
	}
	f.Last = max(f.Last, token)
}

func (f *Fence) lost(token Token) bool {
	for _, t := range f.Lost {
		if t == token {
			return true
		}
	}
	return false
}

// serve lets in the waiters that are alive, can be told and have room, in their order, up to self. It tells whether self
// is next then, and a newcomer if self is 0: nobody before it waits for room. For handed see enter.
func (s *Server) serve(p *Params, self Owner, handed bool) (g []Grant, next bool) {
	for i := 0; i < int(s.Length); {
		if s.full(p) {
			return g, false
		}
		e := s.Line[i]
		if e.Owner == self {
			break
		}
		if e.Expiry <= s.Now && p.Without != DeadArePruned {
			s.remove(i)
			continue
		}
		if e.Told && s.Deaf&bit(e.Owner) != 0 {
			i++
			continue
		}
		if !s.admits(p, e.Limit) {
			return g, false
		}
		token := s.enter(p, e.Owner, e.Limit, p.First, true, handed)
		if p.Without != GrantLeavesTheLine {
			s.remove(i)
		}
		if e.Told {
			g = append(g, Grant{Owner: e.Owner, Token: token, Time: s.Now})
		}
		if e.Limit == 1 || p.Without == ReleaseServesAll || p.Without == GrantLeavesTheLine {
			return g, false
		}
	}
	return g, true
}

func (s *Server) find(id Owner) int {
	for i, e := range s.Line[:s.Length] {
		if e.Owner == id {
			return i
		}
	}
	return -1
}

func (s *Server) leave(id Owner) {
	if i := s.find(id); i >= 0 {
		s.remove(i)
	}
}

func (s *Server) remove(i int) {
	copy(s.Line[i:], s.Line[i+1:])
	s.Length--
	s.Line[s.Length] = Place{}
	if s.Length == 0 {
		s.LineEnd = 0
	}
}
