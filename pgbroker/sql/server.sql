-- Tell what pgbroker must know of the server and of the user it works as.
--
-- Scope:  none
-- Rows:   one: version number (180004), user, whether it is a superuser, whether it bypasses row-level security,
--         schema that triggers' functions would be made in.
-- Locks:  none.
select
    current_setting('server_version_num')::int as version,
    current_user::text as username,
    coalesce(role.rolsuper, false) as superuser,
    coalesce(role.rolbypassrls, false) as bypasses,
    current_schema()::text as schema
from (values (1)) as one
left join pg_catalog.pg_roles as role on role.rolname = current_user
