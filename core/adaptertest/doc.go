// Package adaptertest tests adapters: packages that run the work of a framework under a lock of holdfast.
//
// An adapter is a wrapper of the framework's handler, in about thirty lines:
//
//  1. Make the key with [holdfast.Key], from what names the work. If nothing does, refuse the work.
//  2. Call [holdfast.Locker.Do], or [holdfast.Locker.DoAll] for several keys, with the context that the framework gave.
//     Call the handler in its function, with the function's context.
//  3. Return when the handler has returned: not when the caller has left, and not when the framework has given up.
//  4. If the function was not called, the handler did not run. Answer [holdfast.ErrNotAcquired] so that the caller tries
//     again, [holdfast.ErrUnavailable] and [holdfast.ErrClosed] as an outage.
//  5. If it was called, report [holdfast.ErrLost] even if the handler has succeeded: its outcome is unknown.
//  6. Keep nothing: no goroutine, no table of keys. The Locker has what is to be shared by many calls.
//  7. Take [holdfast.CallOption] values, and give them to [holdfast.Locker.Check] when the adapter is made.
//  8. Pass the scenarios of [Test].
package adaptertest
