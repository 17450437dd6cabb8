// Package schedule is the waiting line of a lock as a schedule with fair shares: a state machine without Redis, to be walked
// at random, and to be compared with the scripts of core call by call.
//
// [Line] says which waiter is let in next, and what is remembered of each share: [Line.Join], [Line.Leave] and [Line.Admit],
// which lets one in. [Lock] has the places too, and does what a script does as a whole. The tests send it random calls, in
// schedules that depend on a seed alone, and stop at the first broken promise, a [Breach], with the steps that led there. Each
// rule of the discipline is a [Rule] that a line can be built without, and the tests find what goes wrong then.
//
// # Discipline
//
// It is start-time fair queueing (Goyal, Vin, Cheng: Start-time Fair Queueing, SIGCOMM 1996) over shares, and first come first
// served within a share. A share has one tag while it waits, and not each waiter its own: a tag that is drawn at the join
// charges a share for callers that give up, and those that do so early are never let in.
//
// One difference: virtual time V is not only the start tag of whom was let in last. It rises by step/(n+1) for each, where n
// shares waited. With the tag alone V stands still while new shares arrive without end, a share for each user, and the second
// call of an old share waits for all of them. In one round of n shares the tags rise by a step and V by n/(n+1) of one, so V
// does not outrun them.
//
// Three rules look as if they could be left out, and cannot:
//
//   - V has a fraction ([ClockKeepsFraction]). In whole numbers a rise by step/(n+1) is none where n shares of weight 100 wait,
//     from n = 50 on, or 5040 of weight 1. Then V stands still as before.
//   - A line in which only waiters without a share are left forgets tags and V only if their tag is V + Unit
//     ([PlainKeepsClaims]), which is where the next share to join puts it. If tags are forgotten while that tag is less, five users
//     that come together raise V beyond it, and the next five find the crowd a Unit behind them, without end.
//   - A share whose waiters cannot be told, and that is passed over, is moved up to V ([PassedOverMoveUp]), as one that joins
//     then. Else it has saved up what it missed: after 1000 services it is the only one for the next 500.
//
// # Bounds
//
// N is the most shares that waited at once since nobody did, H(N) = 1 + 1/2 + ... + 1/N. A step is [Unit]/weight, floored.
//
//   - No tag is above V + Unit: one that is let in leaves V at its tag or above, and its share a step above that.
//   - No tag is below V by more than Unit*(H(N+1) - 1/2), and the tags below V are below it by no more than N*Unit together. Let
//     d(k) be the mean of the k longest lags. The share with the longest is the one let in. If it then waits no more, d(k) becomes
//     at most d(k+1) + Unit/(n+1), and n > k; else all lags together fall. New shares have none. So d(N) <= Unit and
//     d(k) <= d(k+1) + Unit/(k+2).
//   - Starvation: while a waiter that can be told is p-th of its share, the steps of all that are let in add up to less than
//     p*(3N+2)*(Unit+1), which is p*(3N+2) waiters of weight 1. Let its share's tag be T <= V + Unit. Steps of (N+1)*Unit raise V
//     beyond T, and shares that join later are behind it. Those in front have lags of N*Unit together, and each is let in once
//     more at T or below. The 1 is for tags that are floored. That is one of its share; there are p.
//   - Fairness: while a share waits, no other gets steps of more than it, by Unit*(H(N+1) + 3/2) + 1: what tags differ by at the
//     beginning, V + Unit and the longest lag, and one step at the end.
//
// # Limits
//
// Tags end at 2^51, after 4.4e11 waiters of weight 1 without a moment in which nobody waits; from then on shares take turns by
// the arrival of their first waiters. V has a fraction, in a float64 as in Lua: beyond 2^44 it is coarser than 1/256, and more
// than 10,000 shares of weight 100 stop it. A share's name is trusted. Time held does not count. The charge of a waiter is the
// same whatever its limit: one that wants the lock alone lets all places drain and pays as for one.
package schedule
