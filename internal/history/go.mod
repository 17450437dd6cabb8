module github.com/holdfast-go/holdfast/internal/history

go 1.26.0

replace github.com/holdfast-go/holdfast => ../../

require (
	github.com/anishathalye/porcupine v1.3.1
	github.com/holdfast-go/holdfast v0.1.0
	github.com/redis/go-redis/v9 v9.19.0
	golang.org/x/sys v0.47.0
)

require (
	github.com/alicebob/miniredis/v2 v2.40.0 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/yuin/gopher-lua v1.1.1 // indirect
	go.uber.org/atomic v1.11.0 // indirect
)
