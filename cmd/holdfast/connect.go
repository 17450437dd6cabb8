package main

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/redis/go-redis/v9"
)

const defaultURL = "redis://127.0.0.1:6379"

// connect makes a client, and sends nothing yet.
func connect(address string, cluster bool) (redis.UniversalClient, error) {
	o, err := options(address, cluster)
	switch o := o.(type) {
	case *redis.ClusterOptions:
		return redis.NewClusterClient(o), nil
	case *redis.FailoverOptions:
		return redis.NewFailoverClient(o), nil
	case *redis.Options:
		return redis.NewClient(o), nil
	}
	return nil, err
}

// options returns the options of a client for a Cluster, for the master that Sentinel names if the URL has a master_name,
// or for a single server.
func options(address string, cluster bool) (any, error) {
	if address == "" {
		address = defaultURL
	}
	if scheme, _, ok := strings.Cut(address, "://"); !ok || strings.ContainsAny(scheme, "/?#@:") {
		address = "redis://" + address // if there is a ://, it is in a password
	}
	u, err := parse(address)
	if err != nil {
		return nil, err
	}
	switch {
	case cluster:
		o, err := redis.ParseClusterURL(address)
		if err != nil {
			return nil, wrongURL(err)
		}
		o.ReadOnly, o.RouteByLatency, o.RouteRandomly = false, false, false // replicas lag behind
		return o, nil
	case u.Query().Has("master_name"):
		o, err := redis.ParseFailoverURL(address)
		if err != nil {
			return nil, wrongURL(err)
		}
		return o, nil
	}
	o, err := redis.ParseURL(address)
	if err != nil {
		return nil, wrongURL(err)
	}
	o.DialerRetries = 1 // a human waits for the answer
	return o, nil
}

// parse refuses a URL that go-redis would read in another way than its author. If a password contains / ? or # as it is,
// the password ends there for url.Parse, and what is left of it is the host, the port, the path, a parameter or the
// fragment. Then even the text of a failed dial would contain a part of it. The @ behind the password gives such a URL
// away, because nothing behind the host needs one.
func parse(address string) (*url.URL, error) {
	_, rest, _ := strings.Cut(address, "://")
	if i := strings.IndexAny(rest, "/?#"); i >= 0 && strings.Contains(rest[i:], "@") || strings.Contains(rest, "#") {
		return nil, wrongURL(nil)
	}
	u, err := url.Parse(address)
	if err == nil {
		_, err = url.ParseQuery(u.RawQuery) // u.Query drops what it cannot read
	}
	if err != nil {
		return nil, wrongURL(err)
	}
	return u, nil
}

// wrongURL says what is wrong with a URL and quotes nothing of it: any part of it may be one of a password. What url.Parse
// and go-redis say quotes the URL.
func wrongURL(err error) error {
	what := ""
	for _, fixed := range []string{"invalid URL scheme", "invalid database number", "invalid URL path", "unexpected option", "empty unix socket path"} {
		if err != nil && strings.HasPrefix(err.Error(), "redis: "+fixed) {
			what = " (" + fixed + ")"
		}
	}
	return fmt.Errorf("the URL of Redis is wrong%s: want host:port or redis://user:password@host:port/db; "+
		"in a user, a password or a parameter, write / # ? @ %% as %%2F %%23 %%3F %%40 %%25", what)
}

// explain formats an error for humans, with a hint if they might have forgotten a flag.
func explain(err error) string {
	text := errorText(err)
	switch {
	case redis.HasErrorPrefix(err, "MOVED"):
		return text + " (it is a Cluster: use -cluster)"
	case redis.HasErrorPrefix(err, "NOAUTH"), redis.HasErrorPrefix(err, "WRONGPASS"):
		return text + " (the password goes into the URL: redis://user:password@host:port)"
	case strings.Contains(text, "cluster support disabled"):
		return text + " (it is not a Cluster: omit -cluster)"
	}
	return text
}
