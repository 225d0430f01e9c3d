-- State an experiment's demand and return its share, or let the caller divide the fleet.
--
-- KEYS  1 demands  2 quotas  3 shares
-- ARGV  1 token of the experiment  2 its demand, or '' to withdraw it  3 lifetime of the demand in milliseconds
--       4 name of the experiment  5 the caller's number as the dividing driver, or ''
--       6 version of the crews that the caller knows, or ''  7 milliseconds for which the caller divides unless it
--       publishes shares
--
-- The demand is stored with the patterns of all quotas and caps that match the name. If the table has a share for the
-- experiment, returns {'', its share, the crews of the register, or '' if the caller's version is current}.
--
-- Otherwise the caller divides from now on, under a number that no other driver ever has. This applies to a new
-- experiment, to the first caller after the table has expired, and to the dividing driver itself. Returns {number, a
-- list of each token and its valid demand with expiry and patterns, each quota and its value, crews, busy, age of these
-- in milliseconds}. When the dividing driver withdraws, its table expires immediately. Idempotent.

also_when_full('HDEL', KEYS[1])
local have = redis.call('HMGET', KEYS[3], 'number', 'of:' .. ARGV[1], 'version')
local divides = have[1] and have[1] == ARGV[5]
if ARGV[2] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
  if divides then redis.call('DEL', KEYS[3]) else redis.call('HDEL', KEYS[3], 'of:' .. ARGV[1]) end
  return {'', '', ''}
end
local now, patterns = now_ms(), {}
local quotas = redis.call('HGETALL', KEYS[2])
for i = 1, #quotas, 2 do
  local pattern = string.gsub(quotas[i], '^:cap ', '')
  if fits(pattern, ARGV[4]) then patterns[#patterns + 1] = pattern end
end
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f ', now + ARGV[3]) .. table.concat(patterns, ',') .. ' ' .. ARGV[2])
if have[2] and not divides then
  return {'', have[2], have[3] ~= ARGV[6] and redis.call('HGET', KEYS[3], 'crews') or ''}
end
local number = have[1]
if not divides then
  local time = redis.call('TIME')
  number = string.format('%.0f', time[1] * 1000000 + time[2])
  redis.call('HSET', KEYS[3], 'number', number)
  if not have[1] then redis.call('PEXPIRE', KEYS[3], ARGV[7]) end
end
local found = {}
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local holds_until = string.match(all[i + 1], '^(%d+) ')
  if holds_until and tonumber(holds_until) > now then
    found[#found + 1] = all[i]
    found[#found + 1] = all[i + 1]
  else
    redis.call('HDEL', KEYS[1], all[i])
  end
end
local known = redis.call('HMGET', KEYS[3], 'crews', 'busy', 'read_at')
return {number, found, quotas, known[1] or '', known[2] or '', now - (tonumber(known[3] or '') or 0)}
