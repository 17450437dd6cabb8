//go:build !unix

package main

import (
	"os"

	"github.com/holdfast-go/holdfast/core"
)

// command cannot be killed with all that it has started where there are no process groups.
type command struct{}

func newCommand([]string, *settings, func(os.Signal)) (*command, error) {
	return nil, &exit{statusUsage, "run takes process groups, which this system does not have"}
}

func (*command) run(*holdfast.Lock) (status int, lost bool, err error) { return 0, false, nil }

func guard([]string) int { return statusUsage }

const guardVerb = "~guard"

func signalled(os.Signal) int { return statusStopped }
