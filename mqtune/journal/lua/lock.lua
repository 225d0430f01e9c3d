-- Take, renew or release the lock of an experiment's driver.
--
-- KEYS  1 driver  2 meta  3 experiments
-- ARGV  1 holder token  2 description of the driver, for users  3 lock time in milliseconds (0: release it)
--       4 name of the experiment  5 the caller's epoch, 0 before its first lock  6 description of a dead driver, or ''
--       With a heartbeat, also:
--       7 the workers' action without a driver (continue, finish or stop)
--       8 delay before it, in milliseconds  9 why nothing starts now, for users
--       10 limit of the journal's bytes, 0 for no limit  11 the newest entry that the driver has read, or ''
--
-- Returns {epoch, '', 0, 0, bytes in the journal} if the holder has the lock, else {0, its driver, milliseconds until
-- it expires, milliseconds since its driver took it, 0}. A released lock counts as expired from then on.
--
-- A new holder gets an epoch higher than any before. The same holder keeps its epoch, also after the lock expired,
-- unless another driver has had it. Releasing a lock of another holder is a no-op. Idempotent.
--
-- Returns an error STALEDRIVER if the caller's epoch is over: it must not take the lock from a later driver. Returns an
-- error JOURNALGONE if the server has lost the caller's epoch.

also_when_full('HDEL', KEYS[1])
local now = now_ms()
local have = redis.call('HMGET', KEYS[1], 'holder', 'driver', 'epoch', 'since')
local hold_ms = tonumber(ARGV[3])
local until_ms = tonumber(redis.call('HGET', KEYS[2], 'driver_until') or '0')
if hold_ms > 0 and ARGV[5] ~= '0' and (have[1] ~= ARGV[1] or have[3] ~= ARGV[5]) then
  return stale(KEYS[1], ARGV[5]) or redis.error_reply(STALE)
end
if have[1] ~= ARGV[1] then
  local dead = ARGV[6] ~= '' and have[2] == ARGV[6]
  if hold_ms == 0 or (until_ms > now and not dead) then
    return {0, have[2] or '', until_ms - now, now - tonumber(have[4] or now), 0}
  end
  -- The time in microseconds makes it higher than epochs that the server has lost. No two drivers ever share an epoch.
  local time = redis.call('TIME')
  have[3] = string.format('%.0f', math.max(tonumber(have[3] or '0') + 1, time[1] * 1000000 + time[2]))
  redis.call('HSET', KEYS[1], 'epoch', have[3], 'holder', ARGV[1], 'driver', ARGV[2], 'since', now)
  redis.call('HSET', KEYS[2], 'waits', '', 'read', '')
end
-- At each call, because another team's driver may have removed it.
if hold_ms > 0 then redis.call('ZADD', KEYS[3], 'NX', now, ARGV[4]) end
redis.call('HSET', KEYS[2], 'driver_until', now + hold_ms)
if ARGV[7] then
  redis.call('HSET', KEYS[2], 'on_loss', ARGV[7], 'loss_ms', ARGV[8], 'waits', ARGV[9], 'most_bytes', ARGV[10], 'read', ARGV[11])
elseif hold_ms == 0 then
  redis.call('HSET', KEYS[2], 'waits', '', 'read', '')
end
return {tonumber(have[3]), '', 0, 0, number(redis.call('HGET', KEYS[2], 'bytes'), 0)}
