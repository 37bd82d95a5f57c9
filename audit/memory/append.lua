#!lua
-- Appends one row of one invocation, or says why not: the whole of "close once" in one atomic step.
--
-- KEYS  1 stream of the tenant's rows      2 hash request_id -> state      3 sorted set of the open
--       4 hash message -> deaths
--       All but "completed" have these two as well:
--       5 list of the trace: request_ids      6 text that says what these lists cover; see note()
--       7 the token of the message; only with a started row that asks whether it is a replay
--       last, the tick; only with a started row that takes it
-- ARGV  1 started | completed | settled | refused      2 request_id      3 the row's bytes
--       4 the message whose worker died, or nothing
--       5 seconds to keep the list of the trace; 0: none is kept; nothing: not for this row
--       6 seconds to remember the token; nothing where the tick alone came
--       7 seconds that the tick stays taken      8 who takes it; both only with a tick
--
-- A completion is "completed" when the process that ran the body reports it, and "settled" when
-- another one reports what it saw from outside: that one closes what is open, bars what never
-- started, and adds nothing to what is closed.
--
-- A state is a letter and the positions of the invocation's rows in the stream:
--   o START             started, not completed
--   c START END LATE*   completed; LATE are completions that lost
--   t                   barred before any started row came: a tombstone
--   r ROW               refused; or a row that is of no invocation
-- Behind a position whose row was trimmed stands "=" and the row's digest (see trim.lua), so that
-- the same row again is still known.
-- Behind o and c stands an "m" where the started row is marked as a replay: what completes the
-- invocation is then marked likewise, whoever reports it.
--
-- Returns {what became of the row, its position}.

local rows, requests, open = KEYS[1], KEYS[2], KEYS[3]
local action, request_id, row = ARGV[1], ARGV[2], ARGV[3]

local state = redis.call('HGET', requests, request_id)

-- The two steps of nearly every invocation come first, before closures are made that only the rare
-- ones need.
if state and action == 'completed' and string.sub(state, 1, 2) == 'o ' then
  local position = redis.call('XADD', rows, '*', 'row', row)
  redis.call('HSET', requests, request_id, 'c' .. string.sub(state, 2) .. ' ' .. position)
  redis.call('ZREM', open, request_id)
  return {'new', position}
end

-- Puts the invocation into the list of its trace. Comes before the row, so that no row is without
-- it; an entry without a row leads nowhere. A list that is full is a request_id too long, which tells
-- whoever reads it. Returns what the lists cover as yet.
local function note()
  local seconds = ARGV[5]
  if seconds == '' then return end
  if seconds == '0' then
    redis.call('DEL', KEYS[6])
    return
  end
  local covers = redis.call('GET', KEYS[6])
  if redis.call('RPUSH', KEYS[5], request_id) > 5001 then redis.call('LTRIM', KEYS[5], 0, 5000) end
  redis.call('EXPIRE', KEYS[5], seconds)
  return covers
end

-- The lists cover SECONDS and START: every row stored at START or later is in the list of its trace,
-- for so many seconds at least. Where this one is kept for longer than those before, it is the START.
-- All rows there are stand in lists where the tenant had nothing until now: no state, and one by now.
local function cover(covers, position)
  local seconds = ARGV[5]
  if seconds == '' or seconds == '0' then return end
  if covers and string.sub(covers, 1, #seconds + 1) == seconds .. ' ' then return end
  local lasting, start = string.match(covers or '', '^(%d+) (%d+%-%d+)$')
  if not covers and not state and redis.call('HLEN', requests) == 1 then start = '0-0' end
  if not start or (lasting and tonumber(lasting) < tonumber(seconds)) then start = position end
  redis.call('SET', KEYS[6], seconds .. ' ' .. start)
end

if not state and action == 'started' and not KEYS[7] then
  local covers = note()
  local position = redis.call('XADD', rows, '*', 'row', row)
  redis.call('HSET', requests, request_id, 'o ' .. position)
  redis.call('ZADD', open, string.match(position, '^%d+'), request_id)
  cover(covers, position)
  return {'new', position}
end

local letter = state and string.sub(state, 1, 1)
local positions = {}
if state then
  for position in string.gmatch(string.match(state, ' .*') or '', '%S+') do
    positions[#positions + 1] = position
  end
end

local function stored_at(position, bytes)
  local digest = string.match(position, '=(.*)')
  if digest then return digest == redis.sha1hex(bytes) end
  local found = redis.call('XRANGE', rows, position, position)
  return found[1] ~= nil and found[1][2][2] == bytes
end

local function append(bytes, letter_and_more)
  local position = redis.call('XADD', rows, '*', 'row', bytes)
  redis.call('HSET', requests, request_id, letter_and_more .. ' ' .. position)
  return position
end

-- The kind occurs once in this spelling: inside any text of the row the quotes would be escaped.
local function as_late(bytes)
  local kind = '"kind":"skill.invoked_completed"'
  local first, last = string.find(bytes, kind, 1, true)
  return string.sub(bytes, 1, first - 1) .. '"kind":"skill.invoked_late"' .. string.sub(bytes, last + 1)
end

-- This too occurs once in this spelling, or not at all where it is true already.
local function as_replay(bytes)
  local first, last = string.find(bytes, '"redelivered":false', 1, true)
  if not first then return bytes end
  return string.sub(bytes, 1, first - 1) .. '"redelivered":true' .. string.sub(bytes, last + 1)
end

-- Tokens come last, so that whatever fails before it leaves no token without its row.
local function take_tick()
  if ARGV[8] then redis.call('SET', KEYS[#KEYS], ARGV[8], 'EX', ARGV[7]) end
end

local function start_once()
  local holder = ARGV[8] and redis.call('GET', KEYS[#KEYS])
  if holder and holder ~= ARGV[8] then return {'tick_taken', ''} end
  local asks = ARGV[6] ~= ''
  local seen = asks and redis.call('EXISTS', KEYS[7]) == 1
  local covers = note()
  local position = append(seen and as_replay(row) or row, seen and 'om' or 'o')
  redis.call('ZADD', open, string.match(position, '^%d+'), request_id)
  cover(covers, position)
  take_tick()
  if seen then
    redis.call('EXPIRE', KEYS[7], ARGV[6], 'GT')
    return {'replayed', position}
  end
  if asks then redis.call('SET', KEYS[7], request_id, 'EX', ARGV[6]) end
  return {'new', position}
end

local function start()
  if not state then return start_once() end
  if letter == 't' then return {'tombstone', ''} end
  if letter == 'r' then return {'was_refused', ''} end
  if stored_at(positions[1], row) then return {'repeated', positions[1]} end
  if (ARGV[6] or '') ~= '' and stored_at(positions[1], as_replay(row)) then return {'replayed', positions[1]} end
  return {'second_started_row', ''}
end

local function complete()
  local settled = action == 'settled'
  if state and string.sub(state, 2, 2) == 'm' then row = as_replay(row) end
  if letter == 'r' then
    if settled then return {'settled', positions[1]} end
    return {'was_refused', ''}
  end
  if letter == 'o' then
    local covers = settled and note()
    local position = append(row, 'c' .. string.sub(state, 2))
    if settled then cover(covers, position) end
    redis.call('ZREM', open, request_id)
    if ARGV[4] ~= '' then redis.call('HINCRBY', KEYS[4], ARGV[4], 1) end
    return {'new', position}
  end
  if letter ~= 'c' then
    if not settled then return {state and 'tombstone' or 'no_started_row', ''} end
    redis.call('HSET', requests, request_id, 't')
    return {'barred', ''}
  end
  if stored_at(positions[2], row) then return {'repeated', positions[2]} end
  if settled then return {'settled', positions[2]} end
  local late = as_late(row)
  for index = 3, #positions do
    if stored_at(positions[index], late) then return {'late', positions[index]} end
  end
  return {'late', append(late, state)}
end

local function refuse()
  if not state then
    local covers = note()
    local position = append(row, 'r')
    cover(covers, position)
    return {'new', position}
  end
  if letter == 'r' and stored_at(positions[1], row) then return {'repeated', positions[1]} end
  return {letter == 'r' and 'was_refused' or 'second_started_row', ''}
end

if action == 'started' then return start() end
if action == 'refused' then return refuse() end
return complete()
