package asynqlock

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/hibiken/asynq"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/adapter/wiring"
)

// said is what a payload has under a name, read token by token: ok is false where that names nothing to lock.
func said(payload []byte, name string) (value string, ok bool) {
	d := json.NewDecoder(bytes.NewReader(payload))
	d.UseNumber()
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return "", false
	}
	n := 0 // how many fields have the name, in whatever case
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return "", false
		}
		var v any
		if err := d.Decode(&v); err != nil {
			return "", false
		}
		if strings.EqualFold(key.(string), name) {
			n++
		}
		if key != name {
			continue
		}
		switch v := v.(type) {
		case string:
			value, ok = v, v != ""
		case json.Number:
			if value, ok = v.String(), true; value == "-0" {
				value = "0"
			}
		default:
			value, ok = "", false
		}
	}
	if _, err := d.Token(); err != nil {
		return "", false
	}
	_, err := d.Token() // there is nothing behind the object
	return value, ok && err == io.EOF && n == 1
}

// A payload names what its text says, or the task is archived; two have the same key where they say the same.
func FuzzField(f *testing.F) {
	for _, s := range [][3]string{
		{`{"id": "a b"}`, `{"id":"a b","x":[1]}`, "id"}, {`{"id": 42}`, `{"id": "42"}`, "id"}, {`{"id": 42}`, `{"id": 42.0}`, "id"},
		{`{"id": -1.50e3}`, `{"id": -1500}`, "id"}, {`{"id": 9007199254740993}`, `{"id": 9007199254740992}`, "id"},
		{`{"id": "é"}`, `{"id": "\u00e9"}`, "id"}, {`{"id": 1, "id": 2}`, `{"id": 2, "id": 1}`, "id"}, {`{"id": 1, "\u0069d": "\u0062"}`, `{"i\u0064": "b"}`, "id"},
		{`{"id": "a", "ID": "b"}`, `{"ID": "a", "id": "b"}`, "ID"}, {`{"id": "\u0000~@\n"}`, `{"id": "\ud83d\ude00"}`, "id"}, {`{"id": 1, "id": null}`, `{"id": null, "id": 1}`, "id"},
		{``, `null`, "id"}, {`[1]`, `{"id": 1`, "id"}, {`{"id": 1} x`, `{"id": 1} {}`, "id"}, {`{}`, `{"ID": 1}`, "id"}, {`{"id": ""}`, `{"id": true}`, "id"},
		{`{"id": [1]}`, `{"id": {"a": 1}}`, "id"}, {"\xff\xfe", "{\"id\": \"\xff\"}", "id"}, {`{"": 1}`, `{"a": 01}`, "a"}, {`{"é": 1}`, "{\"\xff\": 1}", "\ufffd"},
		{`{"id": "a:b"}`, `{"id": "a", "x": "b"}`, "id"}, {`{"id":1,}`, `{"id":1,"x":}`, "id"}, {`{"id": "\ud800"}`, `{"id": "\udc00"}`, "id"}, {`{"id":1e400}`, `{"id":-0}`, "id"},
		{strings.Repeat(`{"id":`, 50) + "1" + strings.Repeat("}", 50), `{"id":"` + strings.Repeat("x", 400) + `"}`, "id"},
	} {
		f.Add([]byte(s[0]), []byte(s[1]), s[2])
	}
	f.Fuzz(func(t *testing.T, one, two []byte, name string) {
		if name == "" || len(one)+len(two) > 1<<16 {
			return
		}
		key := func(payload []byte, part Part) (string, string) {
			task := asynq.NewTask("pay", payload)
			want, ok := said(payload, name)
			locks, err := wiring.Named([]target{{Resource: "account", Part: part}}, nil, task, unnamed(task))
			key := strings.Join(locks.Keys, " ")
			if ok != (err == nil) {
				t.Fatalf("%q in %q: got key %q, %v, want %q", name, payload, key, err, want)
			}
			if err != nil && (!errors.Is(err, holdfast.ErrInvalid) || !errors.Is(err, asynq.SkipRetry) || len(err.Error()) > 1000+4*len(name)) {
				t.Fatalf("%q in %q: got %v, want a short ErrInvalid and SkipRetry", name, payload, err)
			}
			return key, want
		}
		field := Field(name)
		k1, v1 := key(one, field)
		k2, v2 := key(two, field)
		if k1 != "" && k2 != "" && (k1 == k2) != (v1 == v2) {
			t.Errorf("%q in %q has key %q, in %q %q", name, one, k1, two, k2)
		}
		if k1 != "" && k1 != holdfast.Key("account", v1) {
			t.Errorf("%q in %q has key %q, want that of %q", name, one, k1, v1)
		}
		if twice, _ := key(one, Parts(field, field)); k1 != "" && twice != holdfast.Key("account", v1, v1) {
			t.Errorf("%q in %q twice has key %q", name, one, twice)
		}
	})
}
