module github.com/holdfast-go/holdfast/internal/bench

go 1.26.0

replace (
	github.com/holdfast-go/holdfast => ../../
	github.com/holdfast-go/holdfast/internal/peers => ../peers
)

require (
	github.com/hibiken/asynq v0.26.0
	github.com/holdfast-go/holdfast v0.1.0
	github.com/holdfast-go/holdfast/internal/peers v0.0.0
	github.com/redis/go-redis/v9 v9.23.0
	golang.org/x/sync v0.24.0
)

require (
	github.com/alicebob/miniredis/v2 v2.40.0 // indirect
	github.com/bsm/redislock v0.10.0 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/go-redsync/redsync/v4 v4.18.1 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/redis/rueidis v1.0.79 // indirect
	github.com/robfig/cron/v3 v3.0.1 // indirect
	github.com/spf13/cast v1.10.0 // indirect
	github.com/yuin/gopher-lua v1.1.1 // indirect
	go.uber.org/atomic v1.12.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
	golang.org/x/time v0.14.0 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)

// One driver under all libraries that are compared, the root's. The newest redsync asks for a newer one; .ci/latest takes that.
replace (
	github.com/redis/go-redis/v9 => github.com/redis/go-redis/v9 v9.19.0
	go.uber.org/atomic => go.uber.org/atomic v1.11.0
)
