package gormfence

import (
	"slices"
	"strings"
)

// reads tells whether a statement is known to write no rows. What it does not know is a write, and what looks like a write where
// it is none (a column called update, say) costs a refusal and no more.
func reads(query string, mysql bool) bool {
	words, ok := scan(query, mysql)
	if !ok {
		return false
	}
	for len(words) > 0 {
		end := 0
		for end < len(words) && words[end] != ";" {
			end++
		}
		if !readsOne(words[:end]) {
			return false
		}
		words = words[min(end+1, len(words)):]
	}
	return true
}

// readsOne is about one statement: its words, in upper case.
func readsOne(words []string) bool {
	if len(words) == 0 {
		return true
	}
	switch words[0] {
	case "SELECT", "VALUES", "TABLE", "WITH":
	case "EXPLAIN", "DESCRIBE", "DESC":
		return !slices.Contains(words, "ANALYZE") // which runs the statement
	case "SHOW", "PRAGMA", "RESET", "USE":
		return true
	case "SET":
		return len(words) == 1 || words[1] != "STATEMENT" // MariaDB's runs one
	case "SAVEPOINT", "ROLLBACK", "RELEASE":
		// Of a nested transaction: after an error PostgreSQL lets nothing else through.
		return true
	default:
		return false
	}
	for i, word := range words[1:] {
		before := words[i]
		switch word {
		case "INTO":
			return false
		case "INSERT", "DELETE", "MERGE":
			if words[0] != "SELECT" { // below a SELECT nothing writes
				return false
			}
		case "UPDATE":
			if words[0] != "SELECT" && before != "FOR" && before != "KEY" { // FOR UPDATE, FOR NO KEY UPDATE
				return false
			}
		}
	}
	return true
}

// scan returns the words and semicolons of a query, in upper case, without comments, strings and quoted names. ok is false
// where one of those has no end. Comments of the form /*! are code for MySQL.
func scan(query string, mysql bool) (words []string, ok bool) {
	for i := 0; i < len(query); {
		rest := query[i:]
		switch c := query[i]; {
		case wordByte(c):
			n := 1
			for n < len(rest) && wordByte(rest[n]) {
				n++
			}
			word := strings.ToUpper(rest[:n])
			i += n
			if word == "E" && i < len(query) && query[i] == '\'' { // PostgreSQL's string with backslashes
				n, ok := quoted(query[i:], true)
				if !ok {
					return nil, false
				}
				i += n
				continue
			}
			words = append(words, word)
		case c == ';':
			words = append(words, ";")
			i++
		case c == '\'' || c == '"' || c == '`':
			n, ok := quoted(rest, mysql && c != '`')
			if !ok {
				return nil, false
			}
			i += n
		case strings.HasPrefix(rest, "--"):
			n := strings.IndexByte(rest, '\n')
			if n < 0 {
				return words, true
			}
			i += n
		case strings.HasPrefix(rest, "/*") && !strings.HasPrefix(rest, "/*!") && !strings.HasPrefix(rest, "/*M!"):
			n := strings.Index(rest, "*/")
			if n < 0 {
				return nil, false
			}
			i += n + 2
		default:
			i++
		}
	}
	return words, true
}

// quoted is the length of what is in quotes at the beginning of s. A doubled quote is two strings in a row, which is as well.
func quoted(s string, backslash bool) (n int, ok bool) {
	for n = 1; n < len(s); n++ {
		switch {
		case s[n] == '\\' && backslash:
			n++
		case s[n] == s[0]:
			return n + 1, true
		}
	}
	return 0, false
}

// wordByte is one of a word: dollars are those of PostgreSQL's strings too, which are then read as code.
func wordByte(c byte) bool {
	return c == '_' || c == '$' || c >= 0x80 || '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z'
}
