CREATE TABLE ergon_log (text TEXT NOT NULL);

CREATE TRIGGER ergon_item_log AFTER DELETE ON ergon_item
BEGIN
    INSERT INTO ergon_log (text) VALUES ('deleted; ' || old.name);
END;
-- Nothing follows.
