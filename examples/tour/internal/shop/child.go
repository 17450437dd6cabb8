package shop

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/holdfast-go/holdfast/examples/internal/backend"
	"github.com/holdfast-go/holdfast/sqlfence"
)

// ProcessEnv is set in a process that is one replica. The first line of the standard input is its Role, each further line is
// an order, and the end of the input ends the process. On its standard output the process writes where it listens, and then
// what happens.
const ProcessEnv = "HOLDFAST_TOUR_REPLICA"

// Role is the first line of a replica's input.
type Role struct {
	Play        string // one of those that Child knows
	Name, Scene string
	Fenced      bool
	Lease       time.Duration

	// Of a replica of the page.
	Products []string
	Payment  time.Duration // the least that a payment takes; it takes up to three times as long
	Soft     bool          // it holds up its own messages, because nothing can stop its process

	// StartProcess fills in these.
	Prefix, Redis, Driver, DSN string
	Dialect                    sqlfence.Dialect
}

// Play is what a replica does with the lines of its input. It writes what happens to out.
type Play func(in *bufio.Scanner, out io.Writer, s *Servers, r Role) error

// Child runs a process that is one replica. It returns the exit status.
func Child(plays map[string]Play) int {
	signal.Ignore(os.Interrupt) // Ctrl-C reaches all processes of the terminal, and the parent ends this one
	gin.SetMode(gin.ReleaseMode)
	if err := child(bufio.NewScanner(os.Stdin), os.Stdout, plays); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func child(in *bufio.Scanner, out io.Writer, plays map[string]Play) error {
	var r Role
	if !in.Scan() {
		return fmt.Errorf("no role: %w", in.Err())
	}
	if err := json.Unmarshal(in.Bytes(), &r); err != nil {
		return err
	}
	play, ok := plays[r.Play]
	if !ok {
		return fmt.Errorf("no replica plays %q", r.Play)
	}
	options, err := backend.RedisOptions(r.Redis)
	if err != nil {
		return err
	}
	d := &Database{Driver: r.Driver, DSN: r.DSN, dialect: r.Dialect, conns: 2}
	return play(in, out, &Servers{Prefix: r.Prefix, Redis: options, Database: d}, r)
}
