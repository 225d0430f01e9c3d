-- Take, keep or release the lock of an experiment's driver.
--
-- KEYS  1 driver  2 meta  3 experiments
-- ARGV  1 holder token  2 who that is, for people  3 milliseconds to hold it (0: release it)  4 name of the experiment
--       5 the caller's epoch, 0 before its first lock  6 description of a driver that is known to be dead, or ''
--       With a heartbeat, also:
--       7 what workers do when nobody has driven the experiment for a while (continue, finish or stop)
--       8 how long that is, in milliseconds  9 why nothing starts now, for people
--       10 how many bytes the journal may have, 0 for any number  11 the newest entry that the driver has read, or ''
--
-- Returns {epoch, '', 0, 0, bytes in the journal} when the holder has the lock, else {0, its driver, milliseconds until it runs out, and
-- for how many it has driven, 0}. A released lock counts as
-- expired from then on.
-- A new holder gets an epoch higher than any before; the same holder keeps its epoch, also after the lock ran out,
-- unless another driver has had it. Releasing a lock that another holds is a no-op. Repeating a call does no harm.
-- An error STALEDRIVER when the caller has an epoch that is over: it must not take the lock from a later driver; an error
-- JOURNALGONE when it is the server that has lost the caller's epoch.

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
  -- The time, in microseconds, makes it higher than any that the server has lost, too: no two drivers ever have the same.
  local time = redis.call('TIME')
  have[3] = string.format('%.0f', math.max(tonumber(have[3] or '0') + 1, time[1] * 1000000 + time[2]))
  redis.call('HSET', KEYS[1], 'epoch', have[3], 'holder', ARGV[1], 'driver', ARGV[2], 'since', now)
  redis.call('HSET', KEYS[2], 'waits', '', 'read', '')
end
-- Each time: another team's driver can have removed it.
if hold_ms > 0 then redis.call('ZADD', KEYS[3], 'NX', now, ARGV[4]) end
redis.call('HSET', KEYS[2], 'driver_until', now + hold_ms)
if ARGV[7] then
  redis.call('HSET', KEYS[2], 'on_loss', ARGV[7], 'loss_ms', ARGV[8], 'waits', ARGV[9], 'most_bytes', ARGV[10], 'read', ARGV[11])
elseif hold_ms == 0 then
  redis.call('HSET', KEYS[2], 'waits', '', 'read', '')
end
return {tonumber(have[3]), '', 0, 0, number(redis.call('HGET', KEYS[2], 'bytes'), 0)}
