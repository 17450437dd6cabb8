package gormfence

import (
	"slices"
	"strings"
)

// reads reports whether a statement is known to write no rows. Anything unknown is a write. A read that looks like a write
// (with a column called update, say) is refused at worst.
//
// Whether a backslash escapes a quote is a setting of MySQL (NO_BACKSLASH_ESCAPES, ANSI_QUOTES) and of PostgreSQL
// (standard_conforming_strings). A read must be one under all settings. If a string has no end under one of them, the
// database refuses its statement there.
func reads(query, dialect string) bool {
	sound := false
	for _, escaping := range []string{"", "'", `'"`} {
		words, ok := scan(query, dialect, escaping)
		sound = sound || ok
		for len(words) > 0 {
			end := slices.Index(words, ";")
			if end < 0 && !ok {
				break
			}
			if end < 0 {
				end = len(words)
			}
			if !readsOne(words[:end]) {
				return false
			}
			words = words[min(end+1, len(words)):]
		}
	}
	return sound
}

// readsOne is reads for the words, in upper case, of a single statement.
func readsOne(words []string) bool {
	if len(words) == 0 {
		return true
	}
	switch words[0] {
	case "SELECT", "VALUES", "TABLE", "WITH":
	case "EXPLAIN", "DESCRIBE", "DESC":
		// With ANALYZE it runs the statement. PostgreSQL takes ANALYSE too, and either in quotes.
		return !slices.ContainsFunc(words, func(word string) bool { return word == "ANALYZE" || word == "ANALYSE" || word == `"` })
	case "SHOW", "PRAGMA", "RESET", "USE":
		return true
	case "SET":
		return len(words) == 1 || words[1] != "STATEMENT" // MariaDB's runs one
	case "SAVEPOINT", "RELEASE":
		return true
	case "ROLLBACK":
		// For a nested transaction: after an error PostgreSQL accepts nothing else. Without TO it would end the guard.
		return slices.Contains(words, "TO")
	default:
		return false
	}
	for i, word := range words {
		switch word {
		case "INTO":
			return false
		case "INSERT", "DELETE", "MERGE":
			if words[0] != "SELECT" { // nothing inside a SELECT writes
				return false
			}
		case "UPDATE":
			if words[0] != "SELECT" && !endsIn(words[:i], "FOR") && !endsIn(words[:i], "FOR", "NO", "KEY") {
				return false
			}
		}
	}
	return true
}

func endsIn(words []string, last ...string) bool {
	return len(words) >= len(last) && slices.Equal(words[len(words)-len(last):], last)
}

// unknown is a statement that is not a read. It stands for text that databases parse in different ways.
var unknown = []string{";", "?"}

// scan returns the words of a query, in upper case, without comments and strings. Of the other signs it returns semicolons,
// closing parentheses, which separate an UPDATE from a column called key, and one double quote for each name in double
// quotes. A backslash escapes the quotes in escaping. ok is false if a string or a name has no end.
func scan(query, dialect, escaping string) (words []string, ok bool) {
	mysql := dialect == "mysql"
	for i := 0; i < len(query); {
		rest := query[i:]
		switch c := query[i]; {
		case wordByte(c):
			n := 1
			for n < len(rest) && wordByte(rest[n]) {
				n++
			}
			i += n
			word := strings.ToUpper(rest[:n])
			if word == "E" && !mysql && strings.HasPrefix(rest[n:], "'") { // PostgreSQL's string with backslashes
				n, ok := quoted(rest[n:], true)
				if !ok {
					return words, false
				}
				i += n
				if next := strings.TrimLeft(query[i:], " \t\n\v\f\r"); strings.HasPrefix(next, "'") || strings.HasPrefix(next, "--") {
					return append(words, unknown...), true // it may go on there, with backslashes
				}
				continue
			}
			if !mysql && strings.Count(word, "$") > 1 { // perhaps PostgreSQL's $tag$, which quotes what follows
				return append(words, unknown...), true
			}
			if number := strings.LastIndexAny(word, "0123456789") + 1; (c == '$' || '0' <= c && c <= '9') && number < len(word) {
				word = word[number:] // MySQL, and PostgreSQL before 15, take 1e5INTO for two words
			}
			words = append(words, word)
		case c == ';' || c == ')':
			words = append(words, string(c))
			i++
		case c == '\'' || c == '"' || c == '`':
			n, ok := quoted(rest, strings.IndexByte(escaping, c) >= 0)
			if !ok {
				return words, false
			}
			i += n
			if c == '"' {
				words = append(words, `"`)
			}
		case strings.HasPrefix(rest, "--"), mysql && c == '#':
			line, _, _ := strings.Cut(rest, "\n")
			// In PostgreSQL a carriage return ends it too, and in MySQL -- without a space is two minus signs.
			if strings.ContainsRune(strings.TrimSuffix(line, "\r"), '\r') || mysql && c == '-' && len(line) > 2 && line[2] > ' ' {
				return append(words, unknown...), true
			}
			i += len(line)
		case strings.HasPrefix(rest, "/*"):
			comment, _, ended := strings.Cut(rest[2:], "*/")
			// In SQLite it needs no end, and in MySQL it can be code. A nested one ends both, except in PostgreSQL.
			if !ended || strings.HasPrefix(comment, "!") || strings.HasPrefix(comment, "M!") || strings.Contains(comment, "/*") {
				return append(words, unknown...), true
			}
			i += len("/*") + len(comment) + len("*/")
		case c == '[' && dialect != "postgres": // SQLite's name; PostgreSQL has arrays
			name, _, _ := strings.Cut(rest, "]")
			if strings.ContainsAny(name, "'\"`$") || strings.Contains(name, "--") || strings.Contains(name, "/*") {
				return append(words, unknown...), true
			}
			i++
		default:
			i++
		}
	}
	return words, true
}

// quoted returns the length of the quoted text at the beginning of s, quotes included. A doubled quote inside does not end
// it.
func quoted(s string, backslash bool) (n int, ok bool) {
	for n = 1; n < len(s); n++ {
		switch {
		case s[n] == '\\' && backslash:
			n++
		case s[n] != s[0]:
		case n+1 < len(s) && s[n+1] == s[0]:
			n++
		default:
			return n + 1, true
		}
	}
	return 0, false
}

// wordByte reports whether c is part of a word. So are the dollars of PostgreSQL's strings and parameters.
func wordByte(c byte) bool {
	return c == '_' || c == '$' || c >= 0x80 || '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z'
}
