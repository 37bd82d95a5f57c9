-- Behind append.lua: appends a completed row, and stores its task's result in the same step.
--
-- KEYS  1 to 4 as in append.lua      5 the result
-- ARGV  1 to 4 as in append.lua      5 the result as Celery's backend writes it, in JSON
--       6 seconds until it expires, or nothing
--
-- A result is stored where the row is. Where another one closed the invocation, whoever called
-- decides. As in Celery's own backend, a success that is there stays, and whoever waits is told.

local key, value, seconds = KEYS[5], ARGV[5], ARGV[6]
-- First, for it may be refused, and no row may stand without its result. What is of another type is
-- no result, and is replaced.
local before = redis.pcall('GET', key)

local told = append()
if told[1] ~= 'new' and told[1] ~= 'repeated' then return told end

if type(before) == 'string' and before ~= value then
  local read, meta = pcall(cjson.decode, before)
  if read and type(meta) == 'table' and meta.status == 'SUCCESS' then return told end
end
if seconds == '' then
  redis.call('SET', key, value)
else
  redis.call('SET', key, value, 'EX', seconds)
end
redis.call('PUBLISH', key, value)
return told
