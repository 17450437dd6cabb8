package main

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/redis/go-redis/v9"
)

const defaultURL = "redis://127.0.0.1:6379"

// connect makes a client, and sends nothing yet. The client is for a Cluster, for the master that Sentinel names if the URL
// has a master_name, or for a single server.
func connect(address string, cluster bool) (redis.UniversalClient, error) {
	if address == "" {
		address = defaultURL
	}
	if !strings.Contains(address, "://") {
		address = "redis://" + address
	}
	u, err := url.Parse(address)
	if err != nil {
		// The text of the whole error contains the URL, and so the password.
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
	o.DialerRetries = 1 // a human waits for the answer
	return redis.NewClient(o), nil
}

// explain formats an error for humans, with a hint if they might have forgotten a flag.
func explain(err error) string {
	text := printableText(err.Error())
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
