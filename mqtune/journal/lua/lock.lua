-- Take, keep or give back the lock of an experiment's driver.
--
-- KEYS  1 driver  2 meta  3 experiments
-- ARGV  1 owner token  2 who that is, for people  3 milliseconds to hold it (0: give it back)  4 name of the experiment
--       5 epoch that the caller has, 0 if it has none yet  6 description of a driver that is known to be dead, or ''
--
-- Returns {epoch, '', 0} when the owner has the lock, else {0, who has it, milliseconds until it runs out}.
-- A new owner gets an epoch higher than any before; the same owner keeps its epoch, also after the lock ran out,
-- unless another took it in between. Giving back what another holds changes nothing. Repeating a call does no harm.
-- An error STALEDRIVER when the caller has an epoch that is over: it must not take the lock from a later driver.

local now = now_ms()
local have = redis.call('HMGET', KEYS[1], 'owner', 'driver', 'epoch')
local hold_ms = tonumber(ARGV[3])
local until_ms = tonumber(redis.call('HGET', KEYS[2], 'driver_until') or '0')
if hold_ms > 0 and ARGV[5] ~= '0' and (have[1] ~= ARGV[1] or have[3] ~= ARGV[5]) then
  return redis.error_reply(STALE)
end
if have[1] ~= ARGV[1] then
  local dead = ARGV[6] ~= '' and have[2] == ARGV[6]
  if hold_ms == 0 or (until_ms > now and not dead) then
    return {0, have[2] or '', until_ms - now}
  end
  have[3] = redis.call('HINCRBY', KEYS[1], 'epoch', 1)
  redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'driver', ARGV[2])
  redis.call('ZADD', KEYS[3], 'NX', now, ARGV[4])
end
redis.call('HSET', KEYS[2], 'driver_until', hold_ms == 0 and 0 or now + hold_ms)
return {tonumber(have[3]), '', 0}
