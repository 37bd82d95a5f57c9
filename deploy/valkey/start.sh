#!/bin/sh
# Starts the audit memory with its users: start.sh CONFIG. This is the one place that says who may
# what; docs/deploy.md explains it, tests/integration/test_memory_users.py holds it.
#
# The users reach the server on its standard input, so no file and no command line has a password.
# A script has the rights of who calls it, and every command in it is checked as well: to EVAL gives
# nobody a write that is not listed. What may be written where stands in brackets.
#
# The keys stand in audit/memory/redis_keys.py and redis_lease.py. Beat has no user: it never asks
# the memory. Keep this below 4096 bytes, beyond which sh leaves a process behind to write it.
set -eu

# The same as in docs/pages.md.
reads='~audit:* -@all +@read +eval_ro +script|load +info +config|get +select +ping +time'

exec valkey-server "$1" - <<USERS
user default off
user flower on >${MEMORY_FLOWER_PASSWORD:?choose one} $reads
user gateway on >${MEMORY_GATEWAY_PASSWORD:?choose one} $reads
user worker on >${MEMORY_WORKER_PASSWORD:?choose one} $reads +eval +evalsha \
 (~audit:tenants +sadd) \
 (~audit:{*}:rows +xadd) \
 (~audit:{*}:requests +hset) \
 (~audit:{*}:open +zadd +zrem) \
 (~audit:{*}:deaths +hincrby) \
 (~audit:{*}:trace:* +rpush +ltrim +expire) \
 (~audit:{*}:traced +set +del) \
 (~audit:{*}:seen:* ~audit:{*}:tick:* +set +expire) \
 (~audit:{lease:*}:held ~audit:{lease:*}:seen +set +del) \
 (~audit:{role:doctor-*}:leader +set +del)
user keeper on >${MEMORY_KEEPER_PASSWORD:?choose one} $reads +eval +evalsha \
 (~audit:tenants +sadd) \
 (~audit:{*}:rows +xadd +xtrim) \
 (~audit:{*}:requests +hset) \
 (~audit:{*}:open +zrem) \
 (~audit:{*}:deaths +hincrby) \
 (~audit:{*}:trace:* +rpush +ltrim +expire) \
 (~audit:{*}:traced +set +del) \
 (~audit:{*}:sealed ~audit:{*}:sealed_position ~audit:{*}:trimmed +set) \
 (~audit:{role:*}:leader +set +del)
user operator on >${MEMORY_OPERATOR_PASSWORD:?choose one} $reads +config|set +config|resetstat +client +acl|whoami \
 +acl|list +acl|getuser +acl|log +memory +latency +slowlog +dbsize +lastsave +bgrewriteaof
USERS
