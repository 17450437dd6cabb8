package backend

import (
	"errors"
	"net/url"
	"os"
)

// DatabaseURL reads DATABASE_URL. It is nil where there is none.
func DatabaseURL() (*url.URL, error) {
	text := os.Getenv("DATABASE_URL")
	if text == "" {
		return nil, nil
	}
	u, err := url.Parse(text)
	if err != nil {
		return nil, errors.New("DATABASE_URL: not a URL") // its text may hold a password, and so does err
	}
	return u, nil
}
