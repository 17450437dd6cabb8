module github.com/holdfast-go/holdfast/internal/peers

go 1.26.0

replace github.com/holdfast-go/holdfast => ../../

require (
	github.com/bsm/redislock v0.10.0
	github.com/go-redsync/redsync/v4 v4.18.1
	github.com/hibiken/asynq v0.26.0
	github.com/holdfast-go/holdfast v0.1.0
	github.com/netresearch/go-cron v0.9.1
	github.com/redis/go-redis/v9 v9.23.0
	github.com/redis/rueidis v1.0.79
	github.com/robfig/cron/v3 v3.0.1
	golang.org/x/sync v0.24.0
	modernc.org/sqlite v1.59.0
)

require (
	github.com/alicebob/miniredis/v2 v2.40.0 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/dustin/go-humanize v1.0.1 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/mattn/go-isatty v0.0.24 // indirect
	github.com/ncruces/go-strftime v1.0.0 // indirect
	github.com/remyoudompheng/bigfft v0.0.0-20230129092748-24d4a6f8daec // indirect
	github.com/spf13/cast v1.10.0 // indirect
	github.com/yuin/gopher-lua v1.1.1 // indirect
	go.uber.org/atomic v1.12.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
	golang.org/x/time v0.14.0 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
	modernc.org/libc v1.75.7 // indirect
	modernc.org/mathutil v1.7.1 // indirect
	modernc.org/memory v1.12.1 // indirect
)

// As the other modules have it, so that SQLite is compiled once for all.
replace golang.org/x/sys => golang.org/x/sys v0.47.0

// One driver under all libraries that are compared, the root's. The newest redsync asks for a newer one; .ci/latest takes that.
replace (
	github.com/redis/go-redis/v9 => github.com/redis/go-redis/v9 v9.19.0
	go.uber.org/atomic => go.uber.org/atomic v1.11.0
)
