// Package metrics exports what happens to locks to Prometheus.
//
//	m := metrics.New()
//	prometheus.MustRegister(m)
//	locker, err := holdfast.New(rdb, holdfast.WithTrace(m.Trace()))
//
// These are the series of one process. To see all replicas, take their sum.
//
//	holdfast_waiting           gauge      calls that wait now, for another holder or for other calls of the process
//	holdfast_held              gauge      locks that are held now
//	holdfast_acquire_seconds   histogram  how long successful acquisitions took, the wait included
//	holdfast_lost_total        counter    locks that were lost, and work may have run alongside another holder
//	holdfast_refused_total     counter    calls that ended without the lock, by reason
//
// The reason is
//
//	busy           another holder had the lock until the end of the wait, or of a deadline, or there was no wait
//	unavailable    Redis did not answer in time, or refused
//	canceled       the call's context was cancelled, say because a client hung up, or over before the call asked
//	closed         the Locker was shut down
//	self_deadlock  the call's context held the lock already: a mistake in the program
//
// Beside this file are dashboard.json, for Grafana, and alerts.yml, rules for Prometheus. They tell replicas from other
// programs by the label job, which Prometheus adds.
//
// # Labels
//
// Each series has the label resource. It is the part of the key before the first colon, "order" for Key("order", id), or
// what [WithResource] makes of the key. A process has at most 100 resources, the first 100 that it sees; the others are
// "other". A key is never a label, or each order would be a series. The series of a resource begin at 0 with its first
// event, so that a loss is an increase as soon as Prometheus has seen the resource once.
//
// # What counts
//
// A call of DoAll counts once for each key that it holds, or waits for. If it gives locks back because another one is held,
// and takes them again, both acquisitions count, but no refusal.
//
// A standby of Lead waits, and its acquisition took as long as it stood by: leave the names of leaders out of alerts on
// waiting and on the time to acquire.
//
// With WithReentrancy, only the first acquisition counts. A lock that a forced Shutdown abandons counts as lost.
package metrics
