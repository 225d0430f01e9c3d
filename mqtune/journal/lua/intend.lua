-- Journal the driver's decision to end an attempt, and carry it out.
--
-- KEYS  1 driver  2 meta  3 journal  4 trial  5 staged
-- ARGV  1 channel  2 epoch  3 trial  4 attempt  5 intent  6 event  7 event that ends an unclaimed attempt
--       8 prefix of control channels  9 experiment
--
-- A running attempt gets the intent as its orders, and its worker a hint on the control channel. An unclaimed attempt
-- ends immediately. All its tasks get the intent. If the intent leaves time to save, only task 0 gets it, because
-- it needs the other tasks until it has saved. They get orders when task 0 has ended.
--
-- Returns running (the worker will end it), unclaimed (it is ended now), ended (it had ended by itself, or its hash was
-- deleted or evicted; the decision is journaled anyway) or superseded (nothing is journaled); an error STALEDRIVER
-- if a later driver exists.
--
-- Idempotent by attempt and intent, unless there was another intent in between. Orders are durable, hints are not (see
-- order).

-- Intents that leave a trial time to save.
local SAVING = { pause = true, hand_back = true, give_way = true }

local refused = stale(KEYS[1], ARGV[2])
if refused then return refused end
also_when_full('HDEL', KEYS[1])
local have = redis.call('HMGET', KEYS[4], 'attempt', 'state', 'worker', 'decided', 'gang')
if not have[1] then
  redis.call('HSET', KEYS[4], 'attempt', ARGV[4], 'state', 'ended')
  retire(KEYS[4])
elseif have[1] ~= ARGV[4] then
  return 'superseded'
end
local decided = ARGV[4] .. ':' .. ARGV[5]
if have[4] ~= decided then
  redis.call('HSET', KEYS[4], 'decided', decided)
  append(KEYS[2], KEYS[3], ARGV[1], ARGV[6])
end
local ended_by, prefix, is_running = ARGV[2] .. ':' .. ARGV[5], string.sub(KEYS[4], 1, -1 - #ARGV[3]), false
for _, name in ipairs((tasks_of(ARGV[3], have[5]))) do
  local state, worker = have[2], have[3]
  if name ~= ARGV[3] then state, worker = unpack(redis.call('HMGET', prefix .. name, 'state', 'worker')) end
  local is_told = name == ARGV[3] or not SAVING[ARGV[5]]
  if state == 'running' then
    is_running = true
    if is_told then redis.call('HSET', prefix .. name, 'orders', ARGV[5]) end
  elseif state == 'staged' then
    redis.call('HSET', prefix .. name, 'state', 'ended', 'ended_by', ended_by)
    retire(prefix .. name)
    redis.call('ZREM', KEYS[5], name)
  end
  -- The worker of a reserved task gets a hint, too.
  if state ~= 'ended' and (is_told or state == 'staged') and worker and worker ~= '' then hint(ARGV[8] .. worker, { { ARGV[9], name, tonumber(ARGV[4]), ARGV[5] } }) end
end
if is_running then return 'running' end
if have[2] == 'staged' then
  append(KEYS[2], KEYS[3], ARGV[1], ARGV[7])
  return 'unclaimed'
end
return redis.call('HGET', KEYS[4], 'ended_by') == ended_by and 'unclaimed' or 'ended'
