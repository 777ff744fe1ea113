-- What is looked at from outside, before a store is opened.

-- name: schema_objects
-- Indexes that SQLite makes by itself have no text.
SELECT type, name, sql FROM sqlite_schema
 WHERE tbl_name LIKE 'millpond\_%' ESCAPE '\' AND sql IS NOT NULL
   AND (type <> 'index' OR name LIKE 'millpond\_%' ESCAPE '\')
 ORDER BY CASE type WHEN 'table' THEN 0 WHEN 'index' THEN 1 ELSE 2 END, name;
