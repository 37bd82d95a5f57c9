#!lua
-- Removes the oldest rows of a tenant, a page a call, and keeps what "close once" needs of them.
--
-- KEYS  1 stream of the tenant's rows      2 hash request_id -> state (see append.lua)
--       3 text: the position before which rows have gone
-- ARGV  1 the position before which rows go      2 how many at most
--
-- Stops before the started row of an open invocation. In the state of its invocation each position
-- gets the digest of the row that stood there.
--
-- Returns how many went.

local rows, requests, trimmed = KEYS[1], KEYS[2], KEYS[3]
local page = redis.call('XRANGE', rows, '-', '(' .. ARGV[1], 'COUNT', ARGV[2])

-- The key occurs once in this spelling: inside any text of the row the quotes would be escaped.
local function request_of(bytes)
  return string.match(bytes, '"request_id":"([^"]*)"')
end

local removed, last = 0, nil
for _, entry in ipairs(page) do
  local position, bytes = entry[1], entry[2][2]
  local request_id = request_of(bytes)
  local state = request_id and redis.call('HGET', requests, request_id)
  if state then
    if string.sub(state, 1, 1) == 'o' then break end
    redis.call('HSET', requests, request_id, (string.gsub(state, '%S+', function(word)
      if word == position then return word .. '=' .. redis.sha1hex(bytes) end
    end)))
  end
  removed, last = removed + 1, position
end

if last then
  local milliseconds, sequence = string.match(last, '^(%d+)-(%d+)$')
  local first = string.format('%s-%d', milliseconds, sequence + 1)
  redis.call('XTRIM', rows, 'MINID', '=', first)
  redis.call('SET', trimmed, first)
end
return removed
