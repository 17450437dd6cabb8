package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/redis/go-redis/v9"
)

// namings are the names of the waiters.
var namings = []struct {
	label string
	name  func(i int) string
}{
	{"none", func(int) string { return "" }},
	{"10", func(i int) string { return strconv.Itoa(i % 10) }},
	{"one each", strconv.Itoa},
}

// upkeep is what a line costs Redis, in µs of its time for each script.
type upkeep struct{ join, look, leave, release float64 }

func (upkeep) trouble() (int, string) { return 0, "" }

var upkeepColumns = []column[upkeep]{
	typical("join µs", 1, func(u upkeep) float64 { return u.join }),
	ratio("join ratio", func(u upkeep) float64 { return u.join }),
	typical("look µs", 1, func(u upkeep) float64 { return u.look }),
	ratio("look ratio", func(u upkeep) float64 { return u.look }),
	typical("leave µs", 1, func(u upkeep) float64 { return u.leave }),
	ratio("leave ratio", func(u upkeep) float64 { return u.leave }),
	typical("release µs", 1, func(u upkeep) float64 { return u.release }),
	ratio("release ratio", func(u upkeep) float64 { return u.release }),
}

// longLines measures lines of many waiters. Thousands of Lockers with connections of their own do not fit on a machine, so a Locker
// is watched for the commands that it sends, and those are sent for others.
func (p plan) longLines(ctx context.Context, s *server) (table, error) {
	var rows []row[upkeep]
	sizes := p.choose([]int{10, 1000, 10_000})
	var labels []string
	for _, n := range sizes {
		labels = append(labels, strconv.Itoa(n))
	}
	for _, naming := range namings {
		book, err := learn(ctx, s.addr, naming.name(0) != "")
		if err != nil {
			return table{}, err
		}
		group, err := interleave(p.rounds, labels, func(i int) (upkeep, error) {
			return measureLine(ctx, s.addr, sizes[i], book, naming.name)
		}, naming.label)
		if err != nil {
			return table{}, err
		}
		rows = append(rows, group...)
	}
	title := fmt.Sprintf("What the scripts of a line take of Redis' time: a waiter joins, looks again, or leaves, and a release lets in the next. "+
		"Medians of %d rounds.", p.rounds)
	return tabulate(title, []string{"names", "waiters"}, upkeepColumns, rows, "By Redis' statistics of EVALSHA. ratio: to the shortest line. "+
		"The release publishes the grant to a subscriber."), nil
}

// longLine is a line of waiters that are made up.
type longLine struct {
	*target
	phrasebook
	name  func(i int) string
	inbox *redis.PubSub
	last  int      // to come
	line  []string // owners that wait
	holds string   // the owner, and its token
	token string
}

// inboxOfAll is the channel for all grants.
const inboxOfAll = "bench:inbox"

func measureLine(ctx context.Context, addr string, n int, book phrasebook, name func(int) string) (u upkeep, err error) {
	const batches, joins, looks = 50, 4, 10
	l := &longLine{target: newTarget(addr, 2), phrasebook: book, name: name}
	defer l.close()
	if err := l.rdb.FlushAll(ctx).Err(); err != nil {
		return u, err
	}
	l.inbox = l.rdb.Subscribe(ctx, inboxOfAll)
	defer l.inbox.Close()
	if _, err := l.inbox.Receive(ctx); err != nil {
		return u, err
	}
	got, err := l.rdb.Do(ctx, l.joining("the first", "")...).Int64() // the lock is free
	if err != nil {
		return u, err
	}
	l.holds, l.token = "the first", strconv.FormatInt(got, 10)
	for len(l.line) < n {
		if _, err := l.took(ctx, l.come(min(500, n-len(l.line)))); err != nil {
			return u, err
		}
	}
	var join, look, leave, release []float64
	add := func(to *[]float64, took float64, failed error) {
		*to, err = append(*to, took), errors.Join(err, failed)
	}
	for range batches {
		var looking, leaving [][]any
		took, failed := l.took(ctx, l.come(joins))
		add(&join, took, failed)
		for range looks {
			owner := l.line[rand.IntN(len(l.line))]
			looking = append(looking, l.joining(owner, l.name(number(owner))))
		}
		took, failed = l.took(ctx, looking)
		add(&look, took, failed)
		for range joins / 2 {
			i := rand.IntN(len(l.line))
			leaving = append(leaving, l.leaving(l.line[i]))
			l.line = slices.Delete(l.line, i, i+1)
		}
		took, failed = l.took(ctx, leaving)
		add(&leave, took, failed)
		took, failed = l.serve(ctx, joins-joins/2)
		if add(&release, took, failed); err != nil {
			return u, err
		}
	}
	return upkeep{median(join), median(look), median(leave), median(release)}, nil
}

// come returns the commands by which n more join.
func (l *longLine) come(n int) (commands [][]any) {
	for range n {
		owner := fmt.Sprintf("%022d", l.last)
		commands = append(commands, l.joining(owner, l.name(l.last)))
		l.line = append(l.line, owner)
		l.last++
	}
	return commands
}

func number(owner string) int {
	n, _ := strconv.Atoi(owner) // made by come
	return n
}

// took sends scripts, and returns how long one took Redis on average. None of them changes who holds the lock.
func (l *longLine) took(ctx context.Context, commands [][]any) (float64, error) {
	return l.timed(ctx, func() error {
		replies, err := l.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
			for _, args := range commands {
				p.Do(ctx, args...)
			}
			return nil
		})
		for _, r := range replies {
			if n, isNumber := r.(*redis.Cmd).Val().(int64); isNumber && n > 0 {
				return fmt.Errorf("a waiter of %d was let in", len(l.line))
			}
		}
		return err
	})
}

// serve has n holders release, one after the other.
func (l *longLine) serve(ctx context.Context, n int) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return l.timed(ctx, func() error {
		for range n {
			if n, err := l.rdb.Do(ctx, l.releasing(l.holds, l.token)...).Int(); err != nil || n != 1 {
				return fmt.Errorf("a release returned %d, %w", n, err)
			}
			m, err := l.inbox.ReceiveMessage(ctx)
			if err != nil {
				return err
			}
			grant := strings.Split(m.Payload, "\n")
			i := slices.Index(l.line, grant[0])
			if i < 0 || len(grant) < 2 {
				return fmt.Errorf("granted to nobody that waits: %q", m.Payload)
			}
			l.line = slices.Delete(l.line, i, i+1)
			l.holds, l.token = grant[0], grant[1]
		}
		return nil
	})
}

// timed returns how long a script took Redis on average while act ran.
func (l *longLine) timed(ctx context.Context, act func() error) (float64, error) {
	if err := l.resetStats(ctx); err != nil {
		return 0, err
	}
	if err := act(); err != nil {
		return 0, err
	}
	s, err := l.stats(ctx)
	return float64(s["evalsha"].usec) / float64(s["evalsha"].calls), err
}

// phrasebook has the commands of a Locker, to be sent for others. See acquire.lua and forget.lua of core/internal/protocol.
type phrasebook struct{ join, leave, release []string }

// learn has a Locker wait in line, leave it, take the lock and release it.
func learn(ctx context.Context, addr string, named bool) (b phrasebook, err error) {
	t := newTarget(addr, 2)
	defer t.close()
	if err := t.rdb.FlushAll(ctx).Err(); err != nil {
		return b, err
	}
	seen := &recorder{}
	t.rdb.AddHook(seen)
	locker, err := holdfast.New(t.rdb, holdfast.WithTTL(lease))
	if err != nil {
		return b, err
	}
	defer func() { err = errors.Join(err, shutDown(locker)) }()
	other, err := holdfast.New(t.rdb, holdfast.WithTTL(lease))
	if err != nil {
		return b, err
	}
	defer func() { err = errors.Join(err, shutDown(other)) }()
	var opts []holdfast.CallOption
	if named {
		opts = append(opts, holdfast.WithShare("name"))
	}
	for range 2 { // the first time, scripts are sent in full
		lock, err := other.Acquire(ctx, hot)
		if err != nil {
			return b, err
		}
		waiting, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		_, err = locker.Acquire(waiting, hot, opts...)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			return b, fmt.Errorf("beside a holder: %w", err)
		}
		b.join = seen.latest(func(args []string) bool { return len(strings.Fields(args[behindOwner])) == 8 })
		left := func(args []string) bool {
			return b.join != nil && args[ownerAt] == b.join[ownerAt] && args[behindOwner] == "0"
		}
		for b.leave = nil; b.join != nil && b.leave == nil; b.leave = seen.latest(left) { // nobody waits for that
			if err := pause(ctx, time.Millisecond); err != nil {
				return b, err
			}
		}
		if err := lock.Release(ctx); err != nil {
			return b, err
		}
		b.release = seen.latest(func(args []string) bool { return args[behindOwner] == fmt.Sprint(lock.Token()) })
	}
	if min(len(b.join), len(b.leave), len(b.release)) <= behindOwner || len(strings.Fields(b.join[behindOwner])) != 8 {
		return b, fmt.Errorf("not the commands of a line: %q, %q, %q", b.join, b.leave, b.release)
	}
	return b, nil
}

// ownerAt is where the owner is in a command with five keys, and what comes behind it: a plan, or a token.
const ownerAt, behindOwner = 8, 9

// phrase is a command for another owner.
func phrase(of []string, owner string) (command []any) {
	for _, arg := range of {
		command = append(command, strings.ReplaceAll(arg, of[ownerAt], owner))
	}
	return command
}

// joining has a place in line and a grant last a minute, so that a busy machine is not too slow for them.
func (b phrasebook) joining(owner, name string) []any {
	command := phrase(b.join, owner)
	plan := strings.Fields(b.join[behindOwner]) // lease life block entry first weight:share counted inbox
	plan[0], plan[3], plan[4], plan[5], plan[7] = "60000", "60000", "60000", "1:"+name, inboxOfAll
	command[behindOwner] = strings.Join(plan, " ")
	return command
}

func (b phrasebook) leaving(owner string) []any { return phrase(b.leave, owner) }

func (b phrasebook) releasing(owner, token string) []any {
	command := phrase(b.release, owner)
	command[behindOwner] = token
	return command
}

// recorder keeps the scripts that a client sends.
type recorder struct {
	mu   sync.Mutex // guards sent
	sent [][]string
}

// latest returns the latest of them, of those with five keys, that is right.
func (r *recorder) latest(right func(args []string) bool) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, args := range slices.Backward(r.sent) {
		if len(args) > behindOwner && args[2] == "5" && right(args) {
			return args
		}
	}
	return nil
}

func (r *recorder) note(commands ...redis.Cmder) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range commands {
		if c.Name() != "evalsha" {
			continue
		}
		var args []string
		for _, a := range c.Args() {
			if text, ok := a.(*string); ok {
				a = *text
			}
			args = append(args, fmt.Sprint(a))
		}
		r.sent = append(r.sent, args)
	}
}

func (r *recorder) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (r *recorder) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		r.note(cmd)
		return next(ctx, cmd)
	}
}

func (r *recorder) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		r.note(cmds...)
		return next(ctx, cmds)
	}
}
