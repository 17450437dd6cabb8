module github.com/holdfast-go/holdfast/internal/crontest

go 1.25.0

replace github.com/holdfast-go/holdfast => ../../

require (
	github.com/holdfast-go/holdfast v0.1.0
	github.com/netresearch/go-cron v0.9.1
	github.com/redis/go-redis/v9 v9.19.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/robfig/cron/v3 v3.0.1 // indirect
	go.uber.org/atomic v1.11.0 // indirect
)
