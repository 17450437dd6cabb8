package main

import (
	"slices"
	"time"
)

// peer is a module of others whose locks are measured too. What imports it is in a file of its own, which registers it
// and which a build tag leaves out where the module cannot be had.
type peer struct {
	module   string
	rivals   []rival
	soloists []rival
	takers   []takerEntry
	keepers  []keeperEntry
}

// peers are all there are, by the tag that leaves them out.
var peers = map[string]string{
	"without_redislock": "github.com/bsm/redislock",
	"without_redsync":   "github.com/go-redsync/redsync/v4",
	"without_rueidis":   "github.com/redis/rueidis",
}

// present are the modules of those that registered.
var present []string

// register puts a peer behind holdfast and the floor in all tables, in the order of the files.
func register(p peer) {
	present = append(present, p.module)
	rivals = append(rivals, p.rivals...)
	soloists = append(soloists, p.soloists...)
	takers = append(takers, p.takers...)
	keepers = append(keepers, p.keepers...)
}

// leftOut are the modules of the peers that this program was built without.
func leftOut() (modules []string) {
	for _, module := range peers {
		if !slices.Contains(present, module) {
			modules = append(modules, module)
		}
	}
	slices.Sort(modules)
	return modules
}

// Beside their documented settings the peers are set up for a hot key as well as they allow: of the settings tried, those
// with the most hand-overs over all tables. Two poll, with pauses that grow from a few ms to 16 on average. Shorter ones keep
// the server so busy among hundreds of waiters that releases come late; longer ones leave the key to whoever had it last.
const lookLate = 16 * time.Millisecond
