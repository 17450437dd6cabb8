CREATE TABLE IF NOT EXISTS sqlfence (
  resource text COLLATE "C" PRIMARY KEY,
  token bigint NOT NULL CHECK (token > 0)
) WITH (fillfactor = 70);
