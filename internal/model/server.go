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

// Params are the arguments that all calls of the scripts have in common, and the rule that is broken.
type Params struct {
	Lease   Time // that an acquire asks for
	First   Time // lease of a grant
	Entry   Time // how long a place in line lives without another look
	Fence   Time // how long the fence outlives a lease
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
	Owner    Owner
	End      Time // of the lease
	FenceEnd Time
	LineEnd  Time
	Length   uint8 // of the line
	Line     [MaxOwners]Place
	Fence    Fence
}

// Place is one in the waiting line.
type Place struct {
	Owner  Owner
	Told   bool // is to be told through its inbox
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
}

// Acquire is acquire.lua. With waits it joins the line; told says whether through the inbox.
func (s *Server) Acquire(p *Params, id Owner, waits, told bool) (r Acquired, g Grant) {
	s.Expire()
	gone := s.Gone&bit(id) != 0
	switch s.Owner {
	case id:
		if end := s.Now + p.Lease; s.End < end || p.Without == AcquireNeverShortens {
			s.End = end
		}
		if s.Fence.Live != 0 && p.Without != ResentAcquireGetsItsToken {
			return Acquired{Token: s.Fence.Live}, g
		}
	case 0:
		if gone && p.Without != TombstoneBarsLock {
			return Acquired{Gone: true}, g
		}
	default:
		if gone && p.Without != TombstoneBarsLine {
			return Acquired{Gone: true}, g
		}
		return s.refuse(p, id, waits, told), g
	}

	fence, queued := s.Fence, s.Length > 0
	if s.fast(p, fence) {
		queued = false
	}
	if s.Owner == 0 {
		if queued && s.Line[0].Owner != id && p.Without != FreeLockGoesToTheLine && (waits || p.Without != TryWaitsItsTurn) {
			if g = s.serve(p, id); s.Owner != 0 {
				return s.refuse(p, id, waits, told), g
			}
		}
		s.leave(id)
		s.Owner, s.End = id, s.Now+p.Lease
	}
	token := s.draw(p, fence, queued)
	return Acquired{Token: token}, g
}

// fast tells whether an acquire of a free lock looks at nothing but the fence, see fast.lua.
func (s *Server) fast(p *Params, f Fence) bool {
	return s.Owner == 0 && p.Block == 1 && f.Last != 0 && !f.Waits && f.Live == 0 && f.Lost[0] == 0 && f.Last < s.tokenTime(p)
}

// refuse answers that somebody has the lock, after joining the line where that was asked for.
func (s *Server) refuse(p *Params, id Owner, waits, told bool) Acquired {
	r := Acquired{Holder: s.Owner, Left: s.End - s.Now, Now: s.Now, Last: s.Fence.Last}
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
	s.Line[i] = Place{Owner: id, Told: told && s.Deaf&bit(id) == 0, Expiry: s.Now + p.Entry}
	s.LineEnd = s.Now + p.Entry
	s.Fence.Waits = s.Fence.Last != 0 && p.Without != WaitingIsMarked
	r.Place = i + 1
	r.Deaf = told && s.Deaf&bit(id) != 0
	return r
}

// Forget is forget.lua; tomb says whether to leave a tombstone.
func (s *Server) Forget(p *Params, id Owner, token Token, tomb bool) (reply int, g Grant) {
	s.Expire()
	held := s.Owner == id || s.Owner != 0 && p.Without == ForgetFreesItsOwn
	if held {
		s.Owner, s.End = 0, 0
	}
	if tomb && p.Without != TaintedLeavesTombstone {
		s.Gone |= bit(id)
	}
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
	if s.Owner == 0 && !fast {
		if g = s.serve(p, 0); s.Owner == 0 && held && after.Last != 0 {
			write()
		}
	}

	switch {
	case held && token != 0 && before.lost(token) && p.Without != FenceRemembersLosses:
		return ForgetLost, g
	case held:
		return ForgetReleased, g
	case token == 0:
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
		return 0
	}
	if s.End < s.Now+lease || p.Without == RenewNeverShortens {
		s.End = s.Now + lease
	}
	return s.End - s.Now
}

// draw takes the next token from a fence and those reserved behind it, and stores what the fence then is.
func (s *Server) draw(p *Params, f Fence, waits bool) Token {
	now := s.tokenTime(p)
	token := max(f.Last+1, now)
	switch p.Without {
	case TokensFollowTheClock:
		token = f.Last + 1
	case TokensFollowTheLast:
		token = now
	}
	if f.Live != 0 {
		i := 0
		for i < len(f.Lost) && f.Lost[i] != 0 {
			i++
		}
		if i == len(f.Lost) {
			f.Since = f.Lost[0] + 1
			copy(f.Lost[:], f.Lost[1:])
			i--
		}
		f.Lost[i] = f.Live
	}
	f.Live, f.Last, f.Waits = token, token+p.Block-1, waits
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

func (f *Fence) lost(token Token) bool {
	for _, t := range f.Lost {
		if t == token {
			return true
		}
	}
	return false
}

// serve grants the lock, which is free, to the first in line that is alive and can be told, up to self.
func (s *Server) serve(p *Params, self Owner) Grant {
	fence := s.Fence
	for i := 0; i < int(s.Length); {
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
		token := s.draw(p, fence, true)
		s.Owner, s.End = e.Owner, s.Now+p.First
		if p.Without != GrantLeavesTheLine {
			s.remove(i)
		}
		if !e.Told {
			return Grant{}
		}
		return Grant{Owner: e.Owner, Token: token, Time: s.Now}
	}
	return Grant{}
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
