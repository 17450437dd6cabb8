package core_test

import (
	"strconv"
	"testing"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// What one acquire and its release cost on a real server. internal/bench compares.
func BenchmarkAcquireRelease(b *testing.B) {
	server := servertest.Redis(b)
	l, err := core.New(server.Client())
	if err != nil {
		b.Fatal(err)
	}
	for _, goroutines := range []int{1, 8, 64} {
		b.Run(strconv.Itoa(goroutines), func(b *testing.B) {
			b.ReportAllocs()
			b.SetParallelism(goroutines)
			keys := make(chan string, 1024)
			for i := range 1024 {
				keys <- "k" + strconv.Itoa(i)
			}
			b.RunParallel(func(pb *testing.PB) {
				key := <-keys
				defer func() { keys <- key }()
				for pb.Next() {
					lock, err := l.TryAcquire(background, key)
					if err == nil {
						err = lock.Release(background)
					}
					if err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
}
