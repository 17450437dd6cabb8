package redlock

import (
	"time"

	"github.com/holdfast-go/holdfast/core/internal/redisconn"
)

// plea is a command to one master that nobody has to wait for. It is a cleanup, and so is sent until it is answered.
type plea struct {
	redisconn.Schedule
	make func(*redisconn.Call)
	done func()
}

// plead sends m what make makes of a call, for up to lasting. done, if it is not nil, is called once, in the end.
func (m *member) plead(key string, lasting time.Duration, make func(*redisconn.Call), done func()) {
	now := m.Env.Now().Mono
	p := &plea{make: make, done: done}
	p.Schedule = redisconn.Schedule{Due: now, Until: now + lasting, Patience: maxPatience}
	m.Clean(key, p, false)
}

func (p *plea) When() *redisconn.Schedule { return &p.Schedule }

func (p *plea) Begin(c *redisconn.Call) bool {
	p.make(c)
	return true
}

func (p *plea) End(c *redisconn.Call) bool {
	if c.Err != nil && !redisconn.Permanent(c.Err) {
		return false
	}
	p.Drop()
	return true
}

func (p *plea) Unheard() {}

func (p *plea) Drop() {
	if p.done != nil {
		p.done()
	}
}
