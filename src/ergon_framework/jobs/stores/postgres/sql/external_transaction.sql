-- home: which server and database this is, and where its tables are
SELECT
    (SELECT system_identifier FROM pg_control_system()),
    (SELECT oid::bigint FROM pg_database WHERE datname = current_database()),
    c.oid::bigint, n.nspname::text
FROM (SELECT to_regclass('ergon_jobs')::oid AS oid) AS c
LEFT JOIN pg_class AS t ON t.oid = c.oid LEFT JOIN pg_namespace AS n ON n.oid = t.relnamespace;

-- may_ask: whether this user may ask which server this is
SELECT has_function_privilege('pg_control_system()', 'EXECUTE');

-- session: where tables are looked for, and what is seen of others
SELECT current_setting('search_path'), current_setting('transaction_isolation');

-- set_path: look for them there until the transaction ends
SELECT set_config('search_path', %(path)s, true);
