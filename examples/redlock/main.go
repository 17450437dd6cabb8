// Redlock takes a lock on five independent masters, of which two may be gone.
//
//	go run ./examples/redlock
//	REDIS_ADDRS=a:6379,b:6379,c:6379 go run ./examples/redlock
//
// By default the masters are embedded (miniredis), and fail one after the other. With masters of yours it takes the lock
// once a second until Ctrl-C: stop some of them, and start them again. They must share nothing; HOLDFAST_QUARANTINE is
// explained below.
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
	"github.com/holdfast-go/holdfast/examples/internal/backend"
	"github.com/redis/go-redis/v9"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, out io.Writer) (err error) {
	addrs := strings.FieldsFunc(os.Getenv("REDIS_ADDRS"), func(r rune) bool { return r == ',' })
	var embedded []*miniredis.Miniredis
	// A master that has just started may have forgotten a lock that is held. It does not vote for this long: as long as the
	// longest lease that any program asks for, and 4 s. It must be the same in all programs.
	quarantine := 30 * time.Second
	if len(addrs) == 0 {
		// miniredis does not tell how long it has been up, and so would never vote.
		quarantine = 0
		for range 5 {
			server, err := backend.Miniredis()
			if err != nil {
				return err
			}
			defer server.Close()
			embedded, addrs = append(embedded, server), append(addrs, server.Addr())
		}
	}
	if text := os.Getenv("HOLDFAST_QUARANTINE"); text != "" { // 0 to try it out with masters that are new
		if quarantine, err = time.ParseDuration(text); err != nil {
			return err
		}
	}

	var clients []*redis.Client
	for _, addr := range addrs {
		rdb := redis.NewClient(&redis.Options{Addr: addr})
		defer rdb.Close()
		clients = append(clients, rdb)
	}
	locker, err := holdfast.NewRedLock(clients, holdfast.WithQuarantine(quarantine))
	if err != nil {
		return err
	}
	defer func() {
		// Masters that are gone need not hold up the end of the program: what is left there ends with its lease.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if shutdown := locker.Shutdown(ctx); !errors.Is(shutdown, context.DeadlineExceeded) {
			err = errors.Join(err, shutdown)
		}
	}()

	fmt.Fprintf(out, "%d masters, quarantine %v\n", len(clients), quarantine)
	for gone := 0; ctx.Err() == nil; gone++ {
		wait := time.Second
		if embedded != nil && gone < 3 {
			wait = time.Minute // there is a majority, however long it takes on a busy machine
		}
		fmt.Fprintln(out, round(ctx, locker, wait))
		switch {
		case embedded == nil:
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
		case gone < 3:
			embedded[gone].Close()
			fmt.Fprintf(out, "%d of %d masters are gone\n", gone+1, len(embedded))
		default:
			return nil
		}
	}
	return nil
}

func round(ctx context.Context, locker *holdfast.Locker, wait time.Duration) string {
	var token int64
	err := locker.Do(ctx, holdfast.Key("report", "daily"), func(ctx context.Context) error {
		token = holdfast.Held(ctx)[0].Token() // rises, whichever masters are the majority
		return nil
	}, holdfast.WithWait(wait), holdfast.WithTTL(5*time.Second))
	if err != nil {
		return outcome(err)
	}
	return fmt.Sprintf("held, token %d", token)
}

// outcome tells errors apart that need different answers.
func outcome(err error) string {
	var young *holdfast.QuarantineError
	switch {
	case errors.As(err, &young): // beside ErrUnavailable
		return fmt.Sprintf("no lock before %s: %v have just started", young.Until.Format(time.TimeOnly), young.Nodes)
	case errors.Is(err, holdfast.ErrLost): // what was done may have been done twice, but for a fence
		return "held and lost"
	case errors.Is(err, holdfast.ErrNotAcquired): // somebody else works
		return "held elsewhere"
	case errors.Is(err, holdfast.ErrUnavailable): // nobody knows: do not work, try later
		return "no majority"
	default:
		return err.Error()
	}
}
