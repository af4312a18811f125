-- Everything pgbroker made lives in its schema, functions of triggers included.
drop schema pgbroker cascade;
