// Redlock takes a lock on five independent masters, of which two can be gone.
//
//	go run ./examples/redlock
//	REDIS_ADDRS=a:6379,b:6379,c:6379 go run ./examples/redlock
//
// It takes the lock again and again, and prints the outcome. By default the masters are embedded (miniredis), and end one
// after the other. With three gone there is no majority, and the program ends. With your own masters, which must share
// nothing, it goes on until Ctrl-C: stop some of them, and start them again.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/redlock"
	"github.com/redis/go-redis/v9"
)

// quarantine is how long a master that has just started does not vote, because it might have forgotten a lock. It must be
// the same in all programs: at least 1.01 times the longest lease that any of them asks for, plus 5 s.
var quarantine = 30 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, out io.Writer) error {
	addrs, quarantine := strings.Split(os.Getenv("REDIS_ADDRS"), ","), quarantine
	var embedded []*miniredis.Miniredis
	if addrs[0] == "" { // masters inside this process, to try it out
		addrs, quarantine = nil, 0 // miniredis does not report its uptime, so it would never vote
		for range 5 {
			server := miniredis.NewMiniRedis()
			server.ClockTTL(true) // leases expire as time goes by
			if err := server.Start(); err != nil {
				return err
			}
			defer server.Close()
			embedded, addrs = append(embedded, server), append(addrs, server.Addr())
		}
	}
	var clients []*redis.Client
	for _, addr := range addrs {
		rdb := redis.NewClient(&redis.Options{Addr: addr})
		defer rdb.Close()
		clients = append(clients, rdb)
	}
	locker, err := redlock.New(clients, redlock.WithQuarantine(quarantine))
	if err != nil {
		return err
	}
	// Shutdown would wait for masters that are gone. What they have of a lock expires with its lease, so a second is enough.
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = locker.Shutdown(ctx)
	}()
	if err := locker.Ping(ctx); err != nil { // a wrong address or password shows here
		return err
	}

	for ctx.Err() == nil {
		err := locker.Do(ctx, "report", func(ctx context.Context) error {
			fmt.Fprintln(out, "held, token", holdfast.Held(ctx)[0].Token()) // rises, whichever masters are the majority
			return nil
		}, holdfast.WithWait(5*time.Second), holdfast.WithTTL(5*time.Second))
		switch {
		case errors.Is(err, holdfast.ErrNotAcquired): // another holder has it
			fmt.Fprintln(out, "held elsewhere")
		case errors.Is(err, holdfast.ErrLost): // without a fence, the work might have been done twice
			fmt.Fprintln(out, "held and lost")
		case err != nil: // usually ErrUnavailable: nobody can know, so do not work, and try later
			fmt.Fprintln(out, "no lock:", err)
		}
		switch {
		case len(embedded) > 2:
			embedded[0].Close()
			embedded = embedded[1:]
			fmt.Fprintln(out, len(embedded), "masters are left")
		case embedded != nil:
			return nil
		default:
			time.Sleep(time.Second)
		}
	}
	return nil
}
