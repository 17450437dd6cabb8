-- +goose Up
CREATE TABLE IF NOT EXISTS sqlfence (
  resource VARBINARY(512) NOT NULL PRIMARY KEY,
  token BIGINT NOT NULL
) ENGINE=InnoDB;

-- +goose Down
-- The table stays: a database that forgets its tokens lets a holder that was paused meanwhile write. See README.md.
SELECT 1;
