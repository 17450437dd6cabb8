-- The table stays: a database that forgets its tokens lets a holder that was paused meanwhile write. See README.md.
SELECT 1;
