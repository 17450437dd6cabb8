package main

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/redis/go-redis/v9"
)

const defaultURL = "redis://127.0.0.1:6379"

// connect makes a client, without asking anything yet: of a Cluster, or of the master that Sentinel names where the URL
// has a master_name, or of one server.
func connect(address string, cluster bool) (redis.UniversalClient, error) {
	if address == "" {
		address = defaultURL
	}
	if !strings.Contains(address, "://") {
		address = "redis://" + address
	}
	u, err := url.Parse(address)
	if err != nil {
		// The text of the whole error has the URL in it, and so the password.
		if inner := (*url.Error)(nil); errors.As(err, &inner) {
			err = inner.Err
		}
		return nil, fmt.Errorf("the URL of Redis: %w", err)
	}
	wrong := func(err error) error { return fmt.Errorf("the URL of Redis: %w", err) }
	switch {
	case cluster:
		o, err := redis.ParseClusterURL(address)
		if err != nil {
			return nil, wrong(err)
		}
		o.ReadOnly, o.RouteByLatency, o.RouteRandomly = false, false, false // replicas lag behind
		return redis.NewClusterClient(o), nil
	case u.Query().Has("master_name"):
		o, err := redis.ParseFailoverURL(address)
		if err != nil {
			return nil, wrong(err)
		}
		return redis.NewFailoverClient(o), nil
	}
	o, err := redis.ParseURL(address)
	if err != nil {
		return nil, wrong(err)
	}
	o.DialerRetries = 1 // somebody waits for the answer
	return redis.NewClient(o), nil
}

// explain is an error for people: they may have forgotten a flag.
func explain(err error) string {
	text := printableText(err.Error())
	switch {
	case redis.HasErrorPrefix(err, "MOVED"):
		return text + " (it is a Cluster: use -cluster)"
	case redis.HasErrorPrefix(err, "NOAUTH"), redis.HasErrorPrefix(err, "WRONGPASS"):
		return text + " (the password goes into the URL: redis://user:password@host:port)"
	case strings.Contains(text, "cluster support disabled"):
		return text + " (it is no Cluster: leave -cluster out)"
	}
	return text
}
