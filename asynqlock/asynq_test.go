package asynqlock

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// What asynq.go says about asynq is what asynq does: another version that keeps something in another way fails here, and not
// in production.
func TestWhatAsynqWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, rdb := context.Background(), servertest.NewBubble(t).Client()
		client, inspector := asynq.NewClientFromRedisClient(rdb), asynq.NewInspectorFromRedisClient(rdb)
		deadline := time.Now().Add(time.Hour).Truncate(time.Second)
		enqueue := func(id string, opts ...asynq.Option) {
			t.Helper()
			task := asynq.NewTaskWithHeaders("pay", []byte(id), map[string]string{"k": "v"})
			if _, err := client.Enqueue(task, append(opts, asynq.Queue("q"), asynq.TaskID(id))...); err != nil {
				t.Fatal(err)
			}
		}
		fields := func(id, state string, more ...string) {
			t.Helper()
			h := rdb.HGetAll(ctx, taskKey("q", id)).Val()
			if h["state"] != state || h["msg"] == "" || len(h) != 2+len(more) {
				t.Errorf("%s: got the fields %q, want state %q", id, h, state)
			}
			for _, name := range more {
				if h[name] == "" {
					t.Errorf("%s: got the fields %q, want %q too", id, h, name)
				}
			}
		}
		reads := func(id, lastErr string, deadline int64) {
			t.Helper()
			gotErr, got, err := readMessage([]byte(rdb.HGet(ctx, taskKey("q", id), "msg").Val()))
			if err != nil || gotErr != lastErr || got != deadline {
				t.Errorf("%s: read %q, %d, %v, want %q, %d", id, gotErr, got, err, lastErr, deadline)
			}
		}
		list := func(want ...string) {
			t.Helper()
			got := rdb.LRange(ctx, pendingKey("q"), 0, -1).Val()
			if len(got) != len(want) {
				t.Fatalf("pending: got %q, want %q", got, want)
			}
			for i := range got {
				if got[i] != want[i] {
					t.Errorf("pending: got %q, want %q", got, want)
				}
			}
		}

		// New tasks come to the left end.
		enqueue("first", asynq.Deadline(deadline), asynq.MaxRetry(3))
		enqueue("second", asynq.MaxRetry(0), asynq.Unique(time.Hour))
		list("second", "first")
		fields("first", "pending", "pending_since")
		fields("second", "pending", "pending_since", "unique_key")
		since, _ := strconv.ParseInt(rdb.HGet(ctx, taskKey("q", "first"), "pending_since").Val(), 10, 64)
		if !time.Unix(0, since).Equal(time.Now()) {
			t.Errorf("pending_since is %d, want it in ns", since)
		}
		reads("first", "", deadline.Unix())
		reads("second", "", 0)

		if err := inspector.PauseQueue("q"); err != nil || rdb.Exists(ctx, pausedKey("q")).Val() != 1 {
			t.Errorf("paused: %v", err)
		}
		if err := inspector.UnpauseQueue("q"); err != nil || rdb.Exists(ctx, pausedKey("q")).Val() != 0 {
			t.Errorf("not paused any more: %v", err)
		}

		// asynq takes tasks from the right end. One that fails is put back, and archived without retries left.
		ran := make(chan string, 10)
		server := asynq.NewServerFromRedisClient(rdb, asynq.Config{
			LogLevel: asynq.FatalLevel, Concurrency: 1, Queues: map[string]int{"q": 1}, TaskCheckInterval: 10 * time.Millisecond,
			RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Minute },
		})
		err := server.Start(asynq.HandlerFunc(func(_ context.Context, task *asynq.Task) error {
			id := string(task.Payload())
			fields(id, "active", map[string][]string{"second": {"unique_key"}}[id]...)
			ran <- id
			return errors.New("no " + id)
		}))
		if err != nil {
			t.Fatal(err)
		}
		if a, b := <-ran, <-ran; a != "first" || b != "second" {
			t.Errorf("%q ran, and then %q", a, b)
		}
		failed := time.Now()
		time.Sleep(time.Second)
		fields("first", "retry")
		reads("first", "no first", deadline.Unix())
		fields("second", "archived", "unique_key")
		reads("second", "no second", 0)
		if due := rdb.ZScore(ctx, retryKey("q"), "first").Val(); int64(due) != failed.Add(time.Minute).Unix() {
			t.Errorf("due at %v, want in a minute, in s", due)
		}
		if died := rdb.ZScore(ctx, archivedKey("q"), "second").Val(); int64(died) != failed.Unix() {
			t.Errorf("archived at %v", died)
		}

		// What keep.lua writes is what asynq's own tools can go on with, and so is what run.lua writes.
		rdb.HSet(ctx, taskKey("q", "second"), keptField, 1)
		n, err := keepScript.Run(ctx, rdb, []string{taskKey("q", "second"), archivedKey("q"), retryKey("q")}, "second", time.Now().Add(time.Hour).Unix(), 0).Int()
		if info, err2 := inspector.GetTaskInfo("q", "second"); n != 1 || err != nil || err2 != nil || info.State != asynq.TaskStateRetry || !info.NextProcessAt.Equal(time.Unix(time.Now().Add(time.Hour).Unix(), 0)) {
			t.Errorf("kept: got %d, %v, %+v, %v", n, err, info, err2)
		}
		if err := inspector.RunTask("q", "second"); err != nil || <-ran != "second" {
			t.Errorf("run by hand: %v", err)
		}
		server.Shutdown()
		if q, err := inspector.GetQueueInfo("q"); err != nil || q.Retry != 1 || q.Archived != 1 || q.Size != 2 {
			t.Errorf("got %+v, %v", q, err)
		}
	})
}
