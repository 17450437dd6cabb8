CREATE TABLE IF NOT EXISTS sqlfence (
  resource text COLLATE "C" PRIMARY KEY,
  parallel boolean NOT NULL DEFAULT false,
  token bigint NOT NULL CHECK (token > 0)
) WITH (fillfactor = 70);
