package jsonfield_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/adapter/jsonfield"
	_ "github.com/holdfast-go/holdfast/internal/servertest/testlimit"
)

func TestFind(t *testing.T) {
	for text, want := range map[string]string{ // what is wrong begins with !
		`{"data":{"id":"42"}}`: "42",
		`{"data":{"id":42}}`:   "42",
		"\t{ \"data\" : { \"x\":[{\"id\":1}], \"id\" :\r\n 42 } }": "42",
		`{"id":1,"x":{"data":{"id":2}},"data":{"id":3}}`:           "3",
		`{"d\u0061ta":{"\u0069d":"\u0034"}}`:                       "4",
		`{"data":{"id":"\"\\","x":"\\\""}}`:                        `"\`,
		`{"data":{"id":-0}}`:                                       "0",
		`{"data":{"id":"-0"}}`:                                     "-0",
		`{"data":{"id":-0.0}}`:                                     "-0.0",
		`{"data":{"id":1e0}}`:                                      "1e0",
		"{\"data\":{\"\xff\":1,\"id\":\"\xff\"}}":                  "\ufffd",

		``:                                   "!no body",
		` `:                                  "!no body",
		`[{"data":{"id":1}}]`:                "!a body that is not a JSON object",
		`{"data":{"id":1}`:                   "!a body that is not a JSON object",
		`{"data":{"id":1}}{}`:                "!a body that is not a JSON object",
		`{"data":{"id":01}}`:                 "!a body that is not a JSON object",
		`{}`:                                 `!no field "data" in its body`,
		`{"data":{}}`:                        `!no field "data.id" in its body`,
		`{"data.id":1}`:                      `!no field "data" in its body`,
		`{"data":[{"id":1}]}`:                `!no field "data.id" in its body`,
		`{"data":"{\"id\":1}"}`:              `!no field "data.id" in its body`,
		`{"data":null}`:                      `!no field "data.id" in its body`,
		`{"data":{"id":1},"data":{}}`:        `!a field "data" in its body; only "data" is allowed, once`, // a struct would keep 1
		`{"data":{"id":1},"data":null}`:      `!a field "data" in its body; only "data" is allowed, once`,
		`{"data":{"id":1},"Data":{"id":2}}`:  `!a field "Data" in its body; only "data" is allowed, once`,
		`{"data":{"id":1,"ID":2}}`:           `!a field "ID" in its body; only "id" is allowed, once`,
		`{"data":{"id":1,"\u0049\u0044":2}}`: `!a field "ID" in its body; only "id" is allowed, once`,
		`{"data":{"id":""}}`:                 `!an empty field "data.id" in its body`,
		`{"data":{"id":1,"id":1}}`:           `!a field "id" in its body; only "id" is allowed, once`,
		`{"data":{"id":null}}`:               `!a field "data.id" in its body that is neither a string nor a number`,
		`{"data":{"id":{}}}`:                 `!a field "data.id" in its body that is neither a string nor a number`,
	} {
		got, err := jsonfield.Find([]byte(text), "body", []string{"data", "id"})
		if err != nil {
			got = "!" + err.Error()
		}
		if got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

// What is found is what encoding/json finds, in a struct and in a map; where it might find another value, nothing is.
func FuzzFind(f *testing.F) {
	for _, s := range []string{`{"data":{"id":1}}`, `{"data":{"id":"a"},"x":[{}]}`, `{"data":{"id":1},"data":{"x":2}}`, `{"data":{"id":1},"DATA":{}}`, `{"data":{"id":-0}}`,
		`{"d\u0061ta":{"id":"\ud800"}}`, "{\"data\":{\"id\":\"\xff\"}}", `{"data":{"id":1e5}} `, `{"data":{"":"\\\""},"":{}}`, `{"data":{"id":1}}1`, `{"data":{"x":{"id":1},"id":[]}}`} {
		f.Add([]byte(s), "data", "id")
	}
	f.Add([]byte("{\"\ufffd\":{\"ſ\":1}}"), "\ufffd", "s")
	f.Fuzz(func(t *testing.T, text []byte, outer, inner string) {
		if outer == "" || inner == "" || len(text) > 1<<16 {
			return
		}
		got, err := jsonfield.Find(text, "body", []string{outer, inner})
		var all map[string]json.RawMessage
		var object map[string]json.RawMessage
		found := json.Unmarshal(text, &all) == nil && json.Unmarshal(all[outer], &object) == nil
		want, ok := plain(object[inner])
		for name, fields := range map[string]map[string]json.RawMessage{outer: all, inner: object} {
			for other := range fields {
				ok = ok && (other == name || !strings.EqualFold(other, name))
			}
		}
		switch {
		case err == nil && (!found || !ok || got != want):
			t.Fatalf("%q: got %q, want %q, %v, %v", text, got, want, found, ok)
		case err != nil && found && ok && want != "" && !strings.Contains(err.Error(), "once"):
			t.Fatalf("%q: %v, want %q", text, err, want)
		}
		if err == nil && outer == "data" && inner == "id" {
			var into struct {
				Data struct {
					ID json.RawMessage `json:"id"`
				} `json:"data"`
			}
			if err := json.Unmarshal(text, &into); err != nil {
				t.Fatalf("%q: %v", text, err)
			}
			if other, ok := plain(into.Data.ID); !ok || other != got {
				t.Fatalf("%q: got %q, and a struct %q", text, got, other)
			}
		}
	})
}

// plain is the text of a string or a number.
func plain(raw json.RawMessage) (string, bool) {
	var s string
	var n json.Number
	switch {
	case len(raw) > 0 && raw[0] == '"':
		err := json.Unmarshal(raw, &s)
		return s, err == nil && s != ""
	case string(raw) == "-0":
		return "0", true
	}
	return string(raw), json.Unmarshal(raw, &n) == nil && n != ""
}

// many is an object of 200,000 fields in about a MiB.
func many() []byte {
	return []byte(`{` + strings.Repeat(`"a":1,`, 199_999) + `"id":"42"}`)
}

func BenchmarkFind(b *testing.B) {
	text := many()
	b.Run("Find", func(b *testing.B) {
		b.SetBytes(int64(len(text)))
		for b.Loop() {
			if v, err := jsonfield.Find(text, "body", []string{"id"}); err != nil || v != "42" {
				b.Fatal(v, err)
			}
		}
	})
	b.Run("binding", func(b *testing.B) { // as the handler does
		b.SetBytes(int64(len(text)))
		for b.Loop() {
			var into struct {
				ID string `json:"id"`
			}
			if err := json.Unmarshal(text, &into); err != nil || into.ID != "42" {
				b.Fatal(into, err)
			}
		}
	})
}
