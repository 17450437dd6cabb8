// Package sqltest tests sqlfence on PostgreSQL, MariaDB and SQLite, with the drivers and libraries that people use it
// with and that the root module must not require.
//
// What may be observed of guarded transactions is checked by a history (see history_test.go): holders with rising
// tokens overlap, pause, fail, and lose their connections in the middle of a COMMIT, at each isolation level. The
// same history with an unlocked check in the place of the guard must be found wrong, or the checker would prove nothing.
//
// In the normal run each history takes a fraction of a second; HOLDFAST_SOAK=1 and DURATION=10m divide that time among
// those of one engine. With -v each says what it has seen. SEED repeats the random choices of one that failed, which says
// what its was; run it by its name, for example
//
//	SEED=42 go test -race -count 20 -run '^TestMariaDB$/repeatable-read,found=true,snapshot=1$/^History'
//
// as the scheduler still has a say.
package sqltest
