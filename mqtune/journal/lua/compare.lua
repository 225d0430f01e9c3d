-- Note how an attempt fares on a worker's device, and return how others fare.
--
-- KEYS  1 meta  2 leases
-- ARGV  1 how: well, failed or broken  2 worker  3 device  4 how long a device counts as broken, in milliseconds
--
-- While another device counts as broken, a further one is noted as failed.
--
-- Returns {milliseconds since another worker's last note "well", the same for "failed", 1 if another device counts as
-- broken else 0, number of running attempts}. The first two are -1 if the last note is missing or this worker's own.

local now = now_ms()
local function noted(kind, who)
  local at, by = string.match(redis.call('HGET', KEYS[1], 'fared:' .. kind) or '', '^(%d+) (.*)$')
  return at and by ~= who and math.max(0, now - at) or -1
end
local device = ARGV[2] .. ' ' .. ARGV[3]
local well, failed, broken = noted('well', ARGV[2]), noted('failed', ARGV[2]), noted('broken', device)
local is_broken = broken >= 0 and broken < tonumber(ARGV[4])
local kind, who = ARGV[1], ARGV[2]
if kind == 'broken' then
  -- A trial that reports one device after the other as broken has itself failed.
  if is_broken then kind = 'failed' else who = device end
end
-- Don't recreate an experiment that was deleted meanwhile.
if redis.call('HGET', KEYS[1], 'last') then
  redis.call('HSET', KEYS[1], 'fared:' .. kind, string.format('%d', now) .. ' ' .. who)
end
return { well, failed, is_broken and 1 or 0, redis.call('ZCARD', KEYS[2]) }
