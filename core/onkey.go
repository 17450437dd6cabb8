package holdfast

import "slices"

// OnKey gives opts to calls for key alone, which is as Acquire takes it, without the prefix. They override the other
// options of the same call, or of [New]. Of several for one key the later overrides, but the smallest limit counts.
//
// A call with an OnKey for a key that it does not lock is an [ErrInvalid]. So are [WithWait] and OnKey among opts.
func OnKey(key string, opts ...CallOption) CallOption {
	return &onKey{key, slices.Clone(opts)}
}

// onKey is applied behind the options that are for all keys, by configure and newLocker.
type onKey struct {
	key  string
	opts []CallOption
}

func (o *onKey) call() {}

// apply is called within another OnKey only.
func (o *onKey) apply(*config) error { return invalid("OnKey(%.80q) within OnKey", o.key) }

// into applies the options to c.
func (o *onKey) into(c *config) error {
	waitSet := c.waitSet
	c.waitSet = false
	for _, opt := range o.opts {
		if opt == nil {
			return invalid("OnKey(%.80q): nil option", o.key)
		}
		if err := opt.apply(c); err != nil {
			return err
		}
	}
	if c.waitSet {
		return invalid("OnKey(%.80q): WithWait bounds the wait for all keys of a call", o.key)
	}
	c.waitSet = waitSet
	return nil
}

// onKeys applies to c what is for key. Two names of a call may turn out to be one key, and what one of them wants alone, the
// other must not make it share.
func (c *config) onKeys(key string, all []*onKey) error {
	limit, least := c.limit, 0
	for _, o := range all {
		if o.key != key {
			continue
		}
		c.limit = limit
		if err := o.into(c); err != nil {
			return err
		}
		if least == 0 || c.limit < least {
			least = c.limit
		}
	}
	if least > 0 {
		c.limit = least
	}
	return nil
}

// name makes the configurations of the keys that an OnKey given to New names.
func (l *Locker) name(all []*onKey) error {
	for _, o := range all {
		if l.keyed[o.key] != nil {
			continue
		}
		if _, err := l.stored(o.key); err != nil {
			return err
		}
		c := l.cfg
		err := c.onKeys(o.key, all)
		if err == nil {
			err = c.check(l)
		}
		if err == nil && c.reentryID != "" {
			err = errOneCall
		}
		if err != nil {
			return err
		}
		if l.keyed == nil {
			l.keyed = map[string]*config{}
		}
		l.keyed[o.key] = &c
	}
	return nil
}

// configure applies a call's options to the Locker's, for key, which is one of all if the call is for several.
func configure(l *Locker, opts []CallOption, key string, all ...string) (*config, error) {
	base := l.keyed[key]
	if base == nil {
		base = &l.cfg
	}
	if len(opts) == 0 {
		return base, nil
	}
	cfg := *base
	var named []*onKey
	for _, o := range opts {
		if o == nil {
			return nil, invalid("nil option")
		}
		if k, ok := o.(*onKey); ok {
			if k.key != key && !slices.Contains(all, k.key) {
				return nil, invalid("OnKey(%.80q): the call does not lock that key", k.key)
			}
			named = append(named, k)
		} else if err := o.apply(&cfg); err != nil {
			return nil, err
		}
	}
	if err := cfg.onKeys(key, named); err != nil {
		return nil, err
	}
	return &cfg, cfg.check(l)
}

// names reports whether opts have something for key alone.
func names(opts []CallOption, key string) bool {
	return slices.ContainsFunc(opts, func(o CallOption) bool {
		k, ok := o.(*onKey)
		return ok && k.key == key
	})
}
