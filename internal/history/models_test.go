package history

import (
	"testing"

	"github.com/anishathalye/porcupine"
)

// at is an operation by hand: from and to are both within it.
func at(from, to int64, input any, output ...any) porcupine.Operation {
	o := porcupine.Operation{Call: from, Return: to, Input: input}
	if len(output) > 0 {
		o.Output = output[0]
	}
	return o
}

const ever = int64(Forever)

// TestModels gives each model histories that are legal, and for each of its rules one that breaks it.
func TestModels(t *testing.T) {
	take := func(h int) MutexInput { return MutexInput{Does: Take, Hold: h} }
	end := func(h int) MutexInput { return MutexInput{Does: End, Hold: h} }
	refuse := MutexInput{Does: Refuse}

	grant := func(token int64) FenceInput { return FenceInput{Does: Grant, Token: token} }
	read := func(token int64) FenceInput { return FenceInput{Does: Read, Token: token} }
	write := func(token, value, based int64) FenceInput {
		return FenceInput{Does: Write, Token: token, Value: value, Based: based}
	}
	ok, no := FenceOutput{}, FenceOutput{Refused: true}
	is := func(v int64) FenceOutput { return FenceOutput{Value: v} }

	enter := func(owner string, handle int, token int64) ReentryInput {
		return ReentryInput{Does: Take, Owner: owner, Handle: handle, Token: token}
	}
	exit := func(owner string, handle int) ReentryInput {
		return ReentryInput{Does: End, Owner: owner, Handle: handle}
	}
	bar := func(owner string) ReentryInput { return ReentryInput{Does: Refuse, Owner: owner} }

	won := func(tick int64) ClaimInput { return ClaimInput{Tick: tick, Granted: true} }
	taken := func(tick int64) ClaimInput { return ClaimInput{Tick: tick} }

	in := func(hold, limit int, token int64) PermitInput {
		return PermitInput{Does: Take, Hold: hold, Limit: limit, Token: token}
	}
	out := func(hold int) PermitInput { return PermitInput{Does: End, Hold: hold} }
	lapse := func(hold int) PermitInput { return PermitInput{Does: Lapse, Hold: hold} }
	full := func(limit int) PermitInput { return PermitInput{Does: Refuse, Limit: limit} }
	const all = Unlimited

	type ops = []porcupine.Operation
	tests := []struct {
		model, name string
		legal       bool
		ops         ops
	}{
		{"mutex", "one after the other", true, ops{at(1, 2, take(1)), at(3, 4, end(1)), at(5, 6, take(2)), at(7, 8, end(2))}},
		{"mutex", "it waits for the release", true, ops{at(1, 2, take(1)), at(3, 6, take(2)), at(4, 7, end(1)), at(8, 9, end(2))}},
		{"mutex", "two at once", false, ops{at(1, 2, take(1)), at(3, 4, take(2)), at(5, 6, end(1)), at(7, 8, end(2))}},
		{"mutex", "taken over after the deadline", true, ops{at(1, 2, take(1)), at(5, ever, end(1)), at(4, 6, take(2)), at(7, 8, end(2))}},
		{"mutex", "taken over before the deadline", false, ops{at(1, 2, take(1)), at(5, ever, end(1)), at(3, 4, take(2)), at(7, 8, end(2))}},
		{"mutex", "released after another had it", false, ops{at(1, 2, take(1)), at(3, 4, take(2)), at(5, 6, end(1)), at(7, 8, end(2))}},
		{"mutex", "lost, and never told when", true, ops{at(1, 2, take(1)), at(2, ever, end(1)), at(3, 4, take(2)), at(5, 6, end(2))}},
		{"mutex", "refused beside a holder", true, ops{at(1, 2, take(1)), at(3, 4, refuse), at(5, 6, end(1))}},
		{"mutex", "refused beside one that is lost", true, ops{at(1, 2, take(1)), at(3, ever, end(1)), at(5, 6, refuse)}},
		{"mutex", "refused by nobody", false, ops{at(1, 2, take(1)), at(3, 4, end(1)), at(5, 6, refuse)}},
		{"mutex", "refused by one that is not there yet", false, ops{at(1, 2, refuse), at(3, 4, take(1)), at(5, 6, end(1))}},
		{"mutex", "refused beside an unknown one", true, ops{at(5, 6, MutexInput{Does: Refuse, Excused: true})}},

		{"fence", "in order", true, ops{at(1, 2, grant(5)), at(3, 4, read(5), is(0)), at(5, 6, write(5, 50, 0), ok),
			at(7, 8, grant(6)), at(9, 10, read(6), is(50)), at(11, 12, write(6, 60, 50), ok)}},
		{"fence", "granted at once", true, ops{at(1, 4, grant(6)), at(2, 3, grant(5))}},
		{"fence", "a token that falls", false, ops{at(1, 2, grant(6)), at(3, 4, grant(5))}},
		{"fence", "after the token before", true, ops{at(1, 4, FenceInput{Does: Grant, Token: 6, Follows: 5}), at(2, 5, grant(5))}},
		{"fence", "before the token before", false, ops{at(1, 2, FenceInput{Does: Grant, Token: 6, Follows: 5}), at(3, 4, grant(5))}},
		{"fence", "a token twice", false, ops{at(1, 4, grant(6)), at(2, 3, grant(6))}},
		{"fence", "a stale write is refused", true, ops{at(1, 2, read(6), is(0)), at(3, 4, write(5, 50, 0), no)}},
		{"fence", "a stale write is taken", false, ops{at(1, 2, read(6), is(0)), at(3, 4, write(5, 50, 0), ok)}},
		{"fence", "a late write comes before", true, ops{at(1, 8, write(5, 50, 0), ok), at(3, 4, read(6), is(50))}},
		{"fence", "the newest is refused", false, ops{at(1, 2, read(5), is(0)), at(3, 4, read(6), no)}},
		{"fence", "an update is lost", false, ops{at(1, 2, write(5, 50, 0), ok), at(3, 4, write(6, 60, 0), ok)}},
		{"fence", "an old value is read", false, ops{at(1, 2, write(5, 50, 0), ok), at(3, 4, read(6), is(0))}},

		{"reentry", "nested", true, ops{at(1, 2, enter("a", 1, 5)), at(3, 4, enter("a", 2, 5)), at(5, 6, exit("a", 1)),
			at(7, 8, bar("b")), at(9, 10, exit("a", 2)), at(11, 12, enter("b", 3, 6)), at(13, 14, exit("b", 3))}},
		{"reentry", "free too early", false, ops{at(1, 2, enter("a", 1, 5)), at(3, 4, enter("a", 2, 5)), at(5, 6, exit("a", 1)),
			at(7, 8, enter("b", 3, 6)), at(9, 10, exit("a", 2)), at(13, 14, exit("b", 3))}},
		{"reentry", "another token", false, ops{at(1, 2, enter("a", 1, 5)), at(3, 4, enter("a", 2, 6)), at(5, 6, exit("a", 1)), at(5, 6, exit("a", 2))}},
		{"reentry", "the token of before", false, ops{at(1, 2, enter("a", 1, 5)), at(3, 4, exit("a", 1)), at(5, 6, enter("a", 2, 5)), at(7, 8, exit("a", 2))}},
		{"reentry", "kept by one unseen", true, ops{at(1, 2, enter("a", 1, 5)), at(3, 4, exit("a", 1)),
			at(5, 6, ReentryInput{Does: Take, Owner: "a", Handle: 2, Token: 5, Unseen: true}), at(7, 8, exit("a", 2))}},
		{"reentry", "not kept beside another", false, ops{at(1, 2, enter("a", 1, 5)), at(3, 4, exit("a", 1)), at(5, 6, enter("b", 3, 6)),
			at(7, 8, exit("b", 3)), at(9, 10, ReentryInput{Does: Take, Owner: "a", Handle: 2, Token: 5, Unseen: true}), at(11, 12, exit("a", 2))}},
		{"reentry", "the owner is refused", false, ops{at(1, 2, enter("a", 1, 5)), at(3, 4, bar("a")), at(5, 6, exit("a", 1))}},
		{"reentry", "refused by nobody", false, ops{at(1, 2, enter("a", 1, 5)), at(3, 4, exit("a", 1)), at(5, 6, bar("b"))}},
		{"reentry", "one of two dies", true, ops{at(1, 2, enter("a", 1, 5)), at(3, 4, enter("a", 2, 5)), at(4, ever, exit("a", 1)),
			at(5, 6, exit("a", 2)), at(7, 8, bar("b")), at(9, 10, enter("b", 3, 6)), at(11, 12, exit("b", 3))}},

		{"permit", "as many as all allow", true, ops{at(1, 2, in(1, 3, 5)), at(3, 4, in(2, 2, 6)), at(5, 6, full(3)), at(7, 8, out(2)),
			at(9, 10, in(3, 3, 7)), at(11, 12, in(4, 3, 8)), at(13, 14, full(9))}},
		{"permit", "one too many", false, ops{at(1, 2, in(1, 2, 5)), at(3, 4, in(2, 2, 6)), at(5, 6, in(3, 2, 7))}},
		{"permit", "more than one inside allows", false, ops{at(1, 2, in(1, 2, 5)), at(3, 4, in(2, 3, 6)), at(5, 6, in(3, 3, 7))}},
		{"permit", "more than it allows itself", false, ops{at(1, 2, in(1, 3, 5)), at(3, 4, in(2, 3, 6)), at(5, 6, in(3, 2, 7))}},
		{"permit", "it waits for the release", true, ops{at(1, 2, in(1, 1, 5)), at(3, 6, in(2, 1, 6)), at(4, 7, out(1))}},
		{"permit", "in the place of one that lapsed", true, ops{at(1, 2, in(1, 2, 5)), at(3, 4, in(2, 2, 6)), at(5, 6, lapse(1)), at(7, 8, in(3, 2, 7))}},
		{"permit", "before that one lapsed", false, ops{at(1, 2, in(1, 2, 5)), at(3, 4, in(2, 2, 6)), at(5, 6, in(3, 2, 7)), at(7, 8, lapse(1))}},
		{"permit", "in the place of one, twice", false, ops{at(1, 2, in(1, 2, 5)), at(3, 4, in(2, 2, 6)), at(5, 6, lapse(1)), at(7, 8, in(3, 2, 7)), at(9, 10, in(4, 2, 8))}},
		{"permit", "released after another had its place", false, ops{at(1, 2, in(1, 1, 5)), at(3, 4, in(2, 1, 6)), at(5, 6, out(1))}},
		{"permit", "refused for one that lapsed", true, ops{at(1, 2, in(1, 1, 5)), at(3, 4, lapse(1)), at(5, 6, full(2))}},
		{"permit", "refused for one whose place is another's", false, ops{at(1, 2, in(1, 2, 5)), at(3, 4, lapse(1)), at(5, 6, in(2, 1, 6)), at(7, 8, out(2)), at(9, 10, full(1))}},
		{"permit", "refused for one that is over", false, ops{at(1, 2, in(1, 1, 5)), at(3, 4, lapse(1)), at(5, 6, PermitInput{Does: End, Hold: 1, Lapsed: true}), at(7, 8, full(2))}},
		{"permit", "over, and another's before", true, ops{at(1, 2, in(1, 1, 5)), at(3, 4, lapse(1)), at(5, 6, in(2, 1, 6)), at(7, 8, PermitInput{Does: End, Hold: 1, Lapsed: true})}},
		{"permit", "refused beside one place", false, ops{at(1, 2, in(1, 2, 5)), at(3, 4, full(2))}},
		{"permit", "perhaps refused", true, ops{at(1, 2, PermitInput{Does: Refuse, Limit: 2, Excused: true})}},
		{"permit", "together in any order", true, ops{at(1, 2, in(1, 2, 6)), at(3, 4, in(2, 2, 5))}},
		{"permit", "alone with a token that falls", false, ops{at(1, 2, in(1, 2, 6)), at(3, 4, out(1)), at(5, 6, in(2, 1, 5))}},
		{"permit", "alone with a smaller one than the last but one", false, ops{at(1, 2, in(1, 2, 6)), at(3, 4, in(2, 2, 4)), at(5, 6, out(1)), at(5, 6, out(2)), at(7, 8, in(3, 1, 5))}},
		{"permit", "older than one that was alone", false, ops{at(1, 2, in(1, 1, 6)), at(3, 4, out(1)), at(5, 6, in(2, 2, 5))}},

		{"shared", "readers, a writer, a reader", true, ops{at(1, 2, in(1, all, 5)), at(3, 4, in(2, all, 5)), at(5, 6, full(1)), at(7, 8, out(1)), at(9, 10, out(2)),
			at(11, 12, in(3, 1, 6)), at(13, 14, full(all)), at(15, 16, out(3)), at(17, 18, in(4, all, 7))}},
		{"shared", "a reader beside a writer", false, ops{at(1, 2, in(1, 1, 5)), at(3, 4, in(2, all, 6))}},
		{"shared", "a writer beside a reader", false, ops{at(1, 2, in(1, all, 5)), at(3, 4, in(2, 1, 6))}},
		{"shared", "two writers", false, ops{at(1, 2, in(1, 1, 5)), at(3, 4, in(2, 1, 6))}},
		{"shared", "a writer after one reader of two", false, ops{at(1, 2, in(1, all, 5)), at(3, 4, in(2, all, 6)), at(5, 6, lapse(1)), at(7, 8, in(3, 1, 7))}},
		{"shared", "a writer after both", true, ops{at(1, 2, in(1, all, 5)), at(3, 4, in(2, all, 6)), at(5, 6, lapse(1)), at(7, 8, lapse(2)), at(9, 10, in(3, 1, 7))}},
		{"shared", "a reader refused by readers", false, ops{at(1, 2, in(1, all, 5)), at(3, 4, full(all))}},
		{"shared", "a writer refused by nobody", false, ops{at(1, 2, in(1, all, 5)), at(3, 4, out(1)), at(5, 6, full(1))}},
		{"shared", "a writer with the token of a reader", false, ops{at(1, 2, in(1, all, 5)), at(3, 4, out(1)), at(5, 6, in(2, 1, 5))}},
		{"shared", "a reader with the token of a writer", false, ops{at(1, 2, in(1, 1, 5)), at(3, 4, out(1)), at(5, 6, in(2, all, 5))}},

		{"progress", "all have their keys", true, ops{at(1, 4, ProgressInput{}), at(2, 3, ProgressInput{})}},
		{"progress", "one is stuck", false, ops{at(1, 4, ProgressInput{}), at(2, 9, ProgressInput{Stuck: true})}},

		{"claim", "each once", true, ops{at(1, 2, won(10)), at(3, 4, taken(10)), at(5, 6, won(20))}},
		{"claim", "at once", true, ops{at(1, 4, taken(10)), at(2, 3, won(10))}},
		{"claim", "twice", false, ops{at(1, 4, won(10)), at(2, 3, won(10))}},
		{"claim", "an older one", false, ops{at(1, 2, won(20)), at(3, 4, won(10))}},
		{"claim", "taken by a later one", true, ops{at(1, 2, won(20)), at(3, 4, taken(10))}},
		{"claim", "taken by nobody", false, ops{at(1, 2, won(10)), at(3, 4, taken(20))}},
		{"claim", "taken before", false, ops{at(1, 2, taken(10)), at(3, 4, won(10))}},
		{"claim", "perhaps taken", true, ops{at(1, 2, won(10)), at(3, 4, ClaimInput{Tick: 20, Unknown: 20})}},
		{"claim", "perhaps an older one", false, ops{at(1, 2, won(10)), at(3, 4, ClaimInput{Tick: 20, Unknown: 19})}},
		{"claim", "too near", false, ops{at(1, 2, ClaimInput{Tick: 10, Gap: 5, Granted: true}), at(3, 4, ClaimInput{Tick: 14, Gap: 5, Granted: true})}},
		{"claim", "refused for the gap", true, ops{at(1, 2, ClaimInput{Tick: 10, Gap: 5, Granted: true}), at(3, 4, ClaimInput{Tick: 14, Gap: 5})}},
		{"claim", "far enough", true, ops{at(1, 2, ClaimInput{Tick: 10, Gap: 5, Granted: true}), at(3, 4, ClaimInput{Tick: 15, Gap: 5, Granted: true})}},
		{"claim", "forgotten", true, ops{at(1, 2, won(10)), at(3, 4, ClaimInput{Tick: 10, Forgotten: 10, Granted: true})}},
		{"claim", "not forgotten", false, ops{at(1, 2, won(20)), at(3, 4, ClaimInput{Tick: 20, Forgotten: 10, Granted: true})}},
	}
	for _, tt := range tests {
		t.Run(tt.model+"/"+tt.name, func(t *testing.T) {
			if got := porcupine.CheckOperations(Models[tt.model], tt.ops); got != tt.legal {
				t.Errorf("linearizable: %v, want %v", got, tt.legal)
			}
		})
	}
}
