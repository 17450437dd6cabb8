//go:build s3

package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/sqlfence"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
)

// writeS3 replaces an object whose first line is the token of its writer. next gets what is behind that line, nil where there is none.
func writeS3(ctx context.Context, client *s3.Client, bucket, key string, token int64, next func(old []byte) []byte) error {
	for {
		put := &s3.PutObjectInput{Bucket: &bucket, Key: &key}
		var old []byte
		got, err := client.GetObject(ctx, &s3.GetObjectInput{Bucket: &bucket, Key: &key})
		if missing := (*types.NoSuchKey)(nil); errors.As(err, &missing) {
			put.IfNoneMatch = aws.String("*")
		} else if err != nil {
			return err
		} else {
			text, err := io.ReadAll(got.Body)
			_ = got.Body.Close()
			line, rest, _ := bytes.Cut(text, []byte("\n"))
			last, malformed := strconv.ParseInt(string(line), 10, 64)
			if err := errors.Join(err, malformed); err != nil {
				return err
			}
			if last > token {
				return &sqlfence.StaleError{Resource: key, Token: token, Current: last}
			}
			old, put.IfMatch = rest, got.ETag
		}
		put.Body = bytes.NewReader(append(fmt.Appendf(nil, "%d\n", token), next(old)...))
		_, err = client.PutObject(ctx, put)
		var answer smithy.APIError
		if !errors.As(err, &answer) || answer.ErrorCode() != "PreconditionFailed" && answer.ErrorCode() != "ConditionalRequestConflict" {
			return err // or none
		}
		// Another write came between: read again.
	}
}

const bucket, key = "orders", "42"

// server is an S3 of its own, and what a request passes on its way to it.
type server struct {
	client *s3.Client
	pass   func(*http.Request)
	mu     sync.Mutex // guards pass
}

func newServer(t *testing.T) *server {
	t.Helper()
	s := &server{}
	store := gofakes3.New(s3mem.New()).Server()
	listener := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		pass := s.pass
		s.mu.Unlock()
		if pass != nil {
			pass(r)
		}
		store.ServeHTTP(w, r)
	}))
	t.Cleanup(listener.Close)
	s.client = s3.New(s3.Options{
		Region: "none", BaseEndpoint: &listener.URL, UsePathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider("id", "secret", ""),
	})
	if _, err := s.client.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: aws.String(bucket)}); err != nil {
		t.Fatal(err)
	}
	return s
}

// beforePut has fn run once, when the next PUT has come and the store has not seen it.
func (s *server) beforePut(fn func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pass = func(r *http.Request) {
		if r.Method != http.MethodPut {
			return
		}
		s.mu.Lock()
		s.pass = nil
		s.mu.Unlock()
		fn()
	}
}

func (s *server) write(t *testing.T, token int64, text string) error {
	t.Helper()
	return writeS3(t.Context(), s.client, bucket, key, token, func([]byte) []byte { return []byte(text) })
}

func (s *server) content(t *testing.T) string {
	t.Helper()
	got, err := s.client.GetObject(t.Context(), &s3.GetObjectInput{Bucket: aws.String(bucket), Key: aws.String(key)})
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(got.Body)
	if err := errors.Join(err, got.Body.Close()); err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func wantStale(t *testing.T, err error, token, current int64) {
	t.Helper()
	var stale *sqlfence.StaleError
	if !errors.As(err, &stale) || *stale != (sqlfence.StaleError{Resource: key, Token: token, Current: current}) || !errors.Is(err, holdfast.ErrLost) {
		t.Errorf("got %v, want that %d is stale because of %d", err, token, current)
	}
}

func TestS3RefusesStaleWrites(t *testing.T) {
	s := newServer(t)
	for _, step := range []struct {
		token, stale int64
		text, want   string
	}{
		{token: 5, text: "new", want: "5\nnew"},
		{token: 5, text: "paid", want: "5\npaid"},
		{token: 4, stale: 5, text: "late", want: "5\npaid"},
		{token: 1<<53 - 1, text: "paid", want: "9007199254740991\npaid"},
		{token: 1<<53 - 2, stale: 1<<53 - 1, text: "late", want: "9007199254740991\npaid"},
	} {
		err := s.write(t, step.token, step.text)
		if step.stale != 0 {
			wantStale(t, err, step.token, step.stale)
		} else if err != nil {
			t.Errorf("token %d: %v", step.token, err)
		}
		if got := s.content(t); got != step.want {
			t.Errorf("after token %d: got %q, want %q", step.token, got, step.want)
		}
	}
}

// The store compares when it writes, not when the writer read: each of these comes between.
func TestS3ComparesWhenItWrites(t *testing.T) {
	t.Run("a newer one of an object", func(t *testing.T) {
		s := newServer(t)
		if err := s.write(t, 5, "new"); err != nil {
			t.Fatal(err)
		}
		s.beforePut(func() {
			if err := s.write(t, 7, "new"); err != nil {
				t.Error(err)
			}
		})
		wantStale(t, s.write(t, 5, "late"), 5, 7)
		if got := s.content(t); got != "7\nnew" {
			t.Errorf("got %q", got)
		}
	})
	t.Run("a newer one that is the first", func(t *testing.T) {
		s := newServer(t)
		s.beforePut(func() {
			if err := s.write(t, 7, "new"); err != nil {
				t.Error(err)
			}
		})
		wantStale(t, s.write(t, 5, "late"), 5, 7)
	})
	t.Run("an older one", func(t *testing.T) {
		s := newServer(t)
		if err := s.write(t, 5, "a"); err != nil {
			t.Fatal(err)
		}
		s.beforePut(func() {
			if err := s.write(t, 5, "ab"); err != nil {
				t.Error(err)
			}
		})
		err := writeS3(t.Context(), s.client, bucket, key, 7, func(old []byte) []byte { return append(old, 'c') })
		if got := s.content(t); err != nil || got != "7\nabc" {
			t.Errorf("got %q, %v, want what the older one wrote, and more", got, err)
		}
	})
}

func TestS3UnderManyWriters(t *testing.T) {
	s := newServer(t)
	const writers, each = 4, 5
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for range each {
				err := writeS3(t.Context(), s.client, bucket, key, int64(w+1), func(old []byte) []byte { return append(old, byte('1'+w)) })
				if err != nil && !errors.Is(err, sqlfence.ErrStale) {
					t.Error(err)
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
	all.Wait()
	token, text, _ := strings.Cut(s.content(t), "\n")
	if token != fmt.Sprint(writers) || strings.Count(text, fmt.Sprint(writers)) != each || !regexp.MustCompile(`^1*2*3*4*$`).MatchString(text) {
		t.Errorf("got %s, %q, want the tokens in their order, and all writes of the newest", token, text)
	}
}

// An ETag is that of the content. With the token in the metadata alone, a newer holder that writes the same content leaves the ETag as
// it was, and a late write passes.
func TestS3MetadataIsNoFence(t *testing.T) {
	s := newServer(t)
	put := func(token, text string, match *string) (*string, error) {
		out, err := s.client.PutObject(t.Context(), &s3.PutObjectInput{
			Bucket: aws.String(bucket), Key: aws.String(key), Body: strings.NewReader(text), Metadata: map[string]string{"token": token}, IfMatch: match,
		})
		if err != nil {
			return nil, err
		}
		return out.ETag, nil
	}
	read, err := put("5", "same", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := put("7", "same", read); err != nil {
		t.Fatal(err)
	}
	if _, err := put("5", "late", read); err != nil || s.content(t) != "late" {
		t.Errorf("got %v, %q: the store refuses what the recipe says that it lets pass", err, s.content(t))
	}
	if _, err := put("5", "later", read); err == nil {
		t.Error("the store does not compare ETags at all")
	}
}

func TestRecipeIsThisCode(t *testing.T) {
	paper, err := os.ReadFile(filepath.Join("..", "..", "..", "sqlfence", "RECIPES.md"))
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("s3_test.go")
	if err != nil {
		t.Fatal(err)
	}
	code := regexp.MustCompile(`(?s)// writeS3 .*?\n}\n`).FindString(strings.ReplaceAll(string(source), "\r\n", "\n"))
	if code == "" || !strings.Contains(strings.ReplaceAll(string(paper), "\r\n", "\n"), "```go\n"+code+"```") {
		t.Errorf("RECIPES.md lacks\n%s", code)
	}
}
