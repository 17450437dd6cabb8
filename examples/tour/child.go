package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"github.com/gin-gonic/gin"

	holdfast "github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/examples/internal/backend"
	"github.com/holdfast-go/holdfast/sqlfence"
)

// processEnv is set in a process that is one replica. What it is to do comes as the first line of its standard
// input; each further line confirms a payment, and the end of it is the end of the process. On its standard output
// it says where it listens, with which token it charges a customer, and what the database refused.
const processEnv = "HOLDFAST_QUICKSTART_REPLICA"

// role is the first line.
type role struct {
	Name, Prefix       string
	Redis, Driver, DSN string
	Dialect            sqlfence.Dialect
	Tables             string
	Fenced             bool
	Lease              time.Duration

	// Of a replica of the page: see liveReplica.
	Live     bool
	Products []string
	Payment  time.Duration
	Soft     bool
}

// replicaProcess returns the exit status.
func replicaProcess(in io.Reader, out, errOut io.Writer) int {
	signal.Ignore(os.Interrupt) // Ctrl-C is for all processes of the terminal; the first one ends this one
	gin.SetMode(gin.ReleaseMode)
	if err := serve(bufio.NewScanner(in), out); err != nil {
		fmt.Fprintln(errOut, err)
		return 1
	}
	return 0
}

func serve(in *bufio.Scanner, out io.Writer) error {
	var r role
	if !in.Scan() {
		return fmt.Errorf("no role: %w", in.Err())
	}
	if err := json.Unmarshal(in.Bytes(), &r); err != nil {
		return err
	}
	options, err := backend.RedisOptions(r.Redis)
	if err != nil {
		return err
	}
	d := &database{driver: r.Driver, dsn: r.DSN, dialect: r.Dialect, conns: 2}
	st := &stage{name: r.Prefix, servers: &servers{redis: options, database: d}}
	if r.Live {
		return liveReplica(in, out, r, st)
	}
	paid := make(chan struct{})
	replica, err := startReplica(context.Background(), st, plan{
		name:   r.Name,
		tables: d.tables(r.Prefix, r.Tables),
		locked: true,
		fenced: r.Fenced,
		deaf:   true,
		lock:   []holdfast.Option{holdfast.WithTTL(r.Lease)},
		charge: func(ctx context.Context) error {
			fmt.Fprintln(out, "charging", holdfast.Held(ctx)[0].Token())
			<-paid
			return nil
		},
		middleware: []gin.HandlerFunc{func(c *gin.Context) {
			c.Next()
			for _, e := range c.Errors {
				if errors.Is(e, sqlfence.ErrStale) {
					fmt.Fprintln(out, "refused", e)
				}
			}
		}},
	})
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "listening", replica.url)
	for in.Scan() {
		paid <- struct{}{}
	}
	close(paid)
	return replica.stop(context.Background())
}
