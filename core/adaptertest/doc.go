// Package adaptertest tests adapters: packages that run the work of a framework under a lock of holdfast.
//
// An adapter wraps the framework's handler, in about forty lines:
//
//  1. Make the key with [holdfast.Key], from what names the work. Refuse work that nothing names: Key takes empty parts.
//  2. Call [holdfast.Locker.Do], or [holdfast.Locker.DoAll] for several keys, with the context that the framework gave, and
//     the handler with the context that the function gets.
//  3. Return when the handler has returned: not when the caller has left, and not when the framework has given up.
//  4. In the function, note that the handler ran and what it returned, and return nil. Its error may match one of holdfast's.
//  5. If it did not run, answer [holdfast.ErrNotAcquired] so that the caller tries again, [holdfast.ErrUnavailable] and
//     [holdfast.ErrClosed] as an outage, and any other error as a mistake of the program.
//  6. If it ran, answer [holdfast.ErrLost], even beside a success: the outcome is unknown. Any other error of Do is about the
//     release alone: the answer is the handler's.
//  7. Keep nothing: no goroutine, no table of keys. The Locker has what many calls are to share.
//  8. Take [holdfast.CallOption] values, and give them to [holdfast.Locker.Check], with any key, when the adapter is made.
//  9. Pass the scenarios of [Test].
package adaptertest
