-- +goose Up
CREATE TABLE IF NOT EXISTS sqlfence (
  resource text COLLATE "C" PRIMARY KEY,
  parallel boolean NOT NULL DEFAULT false,
  token bigint NOT NULL CHECK (token > 0)
) WITH (fillfactor = 70);

-- +goose Down
-- The table stays: a database that forgets its tokens lets a holder that was paused meanwhile write. See README.md.
SELECT 1;
