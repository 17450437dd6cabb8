package main

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"github.com/redis/go-redis/v9"
)

const defaultURL = "redis://127.0.0.1:6379"

// another is where the URL of another master begins, in a list.
var another = regexp.MustCompile(`,(?:rediss?(?:\+\w+)?|unix)://`)

// list splits what -redis and REDIS_URL take: URLs, or without any :// and password host:port, separated by commas.
func list(text string) (all []string) {
	if !strings.Contains(text, "://") && !strings.Contains(text, "@") {
		return strings.Split(text, ",")
	}
	for {
		at := another.FindStringIndex(text)
		if at == nil {
			return append(all, text)
		}
		all, text = append(all, text[:at[0]]), text[at[0]+1:]
	}
}

// connect makes a client, and sends nothing yet.
func connect(address string) (redis.UniversalClient, error) {
	o, err := options(address)
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

// options returns the options of a client for a Cluster, for the master that Sentinel names, or for a single server, by the
// scheme of the URL. It has go-redis read the URL, in the form that go-redis has for each.
func options(address string) (any, error) {
	if address == "" {
		address = defaultURL
	}
	scheme, rest, ok := strings.Cut(address, "://")
	if !ok || strings.ContainsAny(scheme, "/?#@:") {
		scheme, rest = "redis", address // if there is a ://, it is in a password
	}
	// A URL that go-redis would read in another way than its author is refused. If a password contains / ? or # as it is,
	// the password ends there for url.Parse, and what is left of it is the host, the port, the path, a parameter or the
	// fragment. Then even the text of a failed dial would contain a part of it. The @ behind the password gives such a URL
	// away, because nothing behind the host needs one.
	if i := strings.IndexAny(rest, "/?#"); i >= 0 && strings.Contains(rest[i:], "@") || strings.Contains(rest, "#") {
		return nil, wrongURL(nil)
	}
	scheme, kind, _ := strings.Cut(strings.ToLower(scheme), "+")
	port := map[string]string{"cluster": "6379", "sentinel": "26379"}[kind]
	if kind == "" || scheme == "unix" {
		if _, err := parse(scheme + "://" + rest); err != nil || kind != "" {
			return nil, wrongURL(err)
		}
		o, err := redis.ParseURL(scheme + "://" + rest)
		if err != nil {
			return nil, wrongURL(err)
		}
		o.DialerRetries = 1 // a human waits for the answer
		return o, nil
	}
	hosts, tail := rest, ""
	if i := strings.IndexAny(rest, "/?"); i >= 0 {
		hosts, tail = rest[:i], rest[i:]
	}
	user, hosts := hosts[:strings.LastIndex(hosts, "@")+1], hosts[strings.LastIndex(hosts, "@")+1:]
	first, others, several := strings.Cut(hosts, ",")
	u, err := parse(scheme + "://" + user + withPort(first, port) + tail)
	if err != nil || u.Hostname() == "" {
		return nil, wrongURL(err)
	}
	q := u.Query()
	if several {
		for other := range strings.SplitSeq(others, ",") {
			if o, err := parse("redis://" + withPort(other, port)); err != nil || o.Hostname() == "" {
				return nil, wrongURL(err)
			}
			q.Add("addr", withPort(other, port))
		}
	}
	switch kind {
	case "cluster":
		u.RawQuery = q.Encode()
		o, err := redis.ParseClusterURL(u.String())
		if err != nil {
			return nil, wrongURL(err)
		}
		o.ReadOnly, o.RouteByLatency, o.RouteRandomly = false, false, false // replicas lag behind
		return o, nil
	case "sentinel":
		master, db, _ := strings.Cut(strings.TrimPrefix(u.Path, "/"), "/")
		if master == "" {
			return nil, wrongURL(errors.New("redis: no name of a master"))
		}
		password, _ := u.User.Password()
		own := [4]string{u.User.Username(), password, q.Get("sentinel_username"), q.Get("sentinel_password")}
		q.Del("sentinel_username")
		q.Del("sentinel_password")
		q.Set("master_name", master)
		u.User, u.Path, u.RawPath, u.RawQuery = nil, "/"+db, "", q.Encode()
		o, err := redis.ParseFailoverURL(u.String())
		if err != nil {
			return nil, wrongURL(err)
		}
		o.Username, o.Password, o.SentinelUsername, o.SentinelPassword = own[0], own[1], own[2], own[3]
		return o, nil
	}
	return nil, wrongURL(errors.New("redis: invalid URL scheme"))
}

// withPort adds the port to a host that has none. What it cannot read it leaves for url.Parse to refuse.
func withPort(host, port string) string {
	if strings.LastIndexByte(host, ':') > strings.LastIndexByte(host, ']') {
		return host
	}
	return host + ":" + port
}

// parse reads a URL, and refuses parameters that cannot be read.
func parse(address string) (*url.URL, error) {
	u, err := url.Parse(address)
	if err == nil {
		_, err = url.ParseQuery(u.RawQuery) // u.Query drops what it cannot read
	}
	if err != nil {
		return nil, err
	}
	return u, nil
}

// wrongURL says what is wrong with a URL and quotes nothing of it: any part of it may be one of a password. What url.Parse
// and go-redis say quotes the URL.
func wrongURL(err error) error {
	what := ""
	for _, fixed := range []string{"invalid URL scheme", "invalid database number", "invalid URL path", "unexpected option", "empty unix socket path", "no name of a master"} {
		if err != nil && strings.HasPrefix(err.Error(), "redis: "+fixed) {
			what = " (" + fixed + ")"
		}
	}
	return fmt.Errorf("the URL of Redis is wrong%s: want host:port, redis://user:password@host:port/db, unix://, "+
		"redis+sentinel://host:port,host:port/master or redis+cluster://host:port,host:port; "+
		"in a user, a password or a parameter, write / # ? @ %% as %%2F %%23 %%3F %%40 %%25", what)
}

// explain formats an error for humans, with a hint if the URL may be the cause.
func explain(err error) string {
	text := errorText(err)
	switch {
	case redis.HasErrorPrefix(err, "MOVED"):
		return text + " (it is a Cluster: redis+cluster://host:port)"
	case redis.HasErrorPrefix(err, "NOAUTH"), redis.HasErrorPrefix(err, "WRONGPASS"):
		return text + " (the password goes into the URL: redis://user:password@host:port)"
	case strings.Contains(text, "cluster support disabled"):
		return text + " (it is not a Cluster: redis://host:port)"
	}
	return text
}
