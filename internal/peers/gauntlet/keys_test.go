package main

import "context"

func init() {
	controls["released-while-leading"] = control{polls, "while the function of the former runs"}
	controls["opposite-transfers"] = control{polls, "each waits for the other"}
}

// lead releases when the context ends, whatever fn is at.
func (b broken) lead(ctx context.Context, name string, fn func(context.Context)) error {
	h, err := b.acquire(ctx, name)
	if err != nil {
		return err
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		fn(ctx)
	}()
	select {
	case <-ctx.Done():
	case <-over:
	}
	return h.release(context.WithoutCancel(ctx))
}

// doAll takes one key after the other, as named.
func (b broken) doAll(ctx context.Context, keys []string, fn func()) error {
	for _, key := range keys {
		h, err := b.acquire(ctx, key)
		if err != nil {
			return err
		}
		defer func() { _ = h.release(context.WithoutCancel(ctx)) }()
	}
	fn()
	return nil
}
