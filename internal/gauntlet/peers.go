package main

import "slices"

// peers are the libraries of others. What imports one is in a file of its own, which registers it and which a build tag
// leaves out where the module cannot be had.
var peers []library

// register adds a peer, in the order of the files.
func register(l library) { peers = append(peers, l) }

// peerTags are those tags, by the names of the libraries.
var peerTags = map[string]string{
	"redislock":   "without_redislock",
	"redsync":     "without_redsync",
	"rueidislock": "without_rueidis",
}

// leftOut are the names of the peers that this program was built without.
func leftOut() (names []string) {
	for name := range peerTags {
		if !slices.ContainsFunc(peers, func(l library) bool { return l.name == name }) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// libraries are all that there are, in the order of the report.
func libraries() []library {
	return slices.Concat([]library{holdfastLibrary}, peers, []library{floorLibrary})
}
