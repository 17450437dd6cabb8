-- The table stays: a database that forgets its tokens lets a holder write that was paused since then. See README.md.
SELECT 1;
