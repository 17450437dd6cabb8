-- +goose Up
CREATE TABLE IF NOT EXISTS sqlfence (
  resource TEXT NOT NULL PRIMARY KEY,
  token INTEGER NOT NULL CHECK (typeof(token) = 'integer' AND token > 0)
) WITHOUT ROWID;

-- +goose Down
-- The table stays: a database that forgets its tokens lets a holder that was paused meanwhile write. See README.md.
SELECT 1;
