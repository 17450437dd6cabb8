package sqlfence

// Option configures a [Fence].
type Option interface{ apply(*config) error }

const (
	defaultTable   = "sqlfence"
	defaultRetries = 10
	maxRetries     = 1000
	maxName        = 63 // bytes of an identifier: PostgreSQL cuts longer ones off
)

type config struct {
	table    string
	retries  int
	anyToken bool
	also     []func(error) bool // after what to repeat
	traces   traces
}

type option func(*config) error

func (o option) apply(c *config) error { return o(c) }

// WithTable sets the name of the table of guard rows. Default: sqlfence. All programs that write the same data must use the
// same table, or they do not see each other's tokens.
//
// On PostgreSQL include the schema, as in "public.sqlfence": along search_path, two users may each find a table of their own.
// On MySQL include the database, for the same reason.
//
// The name, and each schema in front with a dot behind it, has 1 to 63 letters, digits, _ and $, and does not begin with a
// digit. Names are quoted, so upper case matters if it does to the database.
func WithTable(name string) Option {
	return option(func(c *config) error {
		if !validName(name) {
			return invalid("WithTable(%.80q): want words of 1 to %d letters, digits, _ and $, with dots between them", name, maxName)
		}
		c.table = name
		return nil
	})
}

// WithAnyToken allows tokens up to 2^53-1, for a [Mark] with a numbering of its own that outruns the clock. All programs that
// use the table need it then.
//
// Without it a Fence refuses, with [holdfast.ErrInvalid], a token more than an hour ahead of the database's clock in
// microseconds since 1970. The tokens of locks are such times, and a guard row never goes back, so one from the future would
// shut out all later holders. Smaller numbers pass.
func WithAnyToken() Option {
	return option(func(c *config) error {
		c.anyToken = true
		return nil
	})
}

// WithRetries sets how many times [Fence.WithTx] and [Fence.Advance] repeat a transaction that the database broke off, and
// [Fence.Prune] each of its batches. Default: 10. Bounds: 0, which turns repeats off, to 1000. The pause before a repeat is
// random, at first up to 2 ms and later up to 500 ms. With too few, some of many holders that start together fail.
//
// At REPEATABLE READ and SERIALIZABLE a transaction can fail at the guard because another one has committed. Unless repeats
// are off, up to 1000 for that reason do not count.
//
// A Fence repeats after these errors:
//
//   - PostgreSQL (pgx, lib/pq): SQLSTATE 40001 and 40P01.
//   - MySQL (go-sql-driver): the numbers 1213 and 1020.
//   - SQLite (modernc.org and glebarez, mattn, ncruces): the codes LOCKED and, for a second, BUSY.
//   - Everywhere, except from COMMIT: [driver.ErrBadConn], and an error of pgx that is safe to retry.
//
// The functions in also add more. They are called with errors of the database, COMMIT's included, and of the function given
// to WithTx. They must return true only if nothing of the transaction remains in the database after such an error.
func WithRetries(n int, also ...func(error) bool) Option {
	return option(func(c *config) error {
		if n < 0 || n > maxRetries {
			return invalid("WithRetries(%d): want 0 to %d", n, maxRetries)
		}
		for _, is := range also {
			if is == nil {
				return invalid("WithRetries: nil function")
			}
		}
		c.retries, c.also = n, also
		return nil
	})
}
