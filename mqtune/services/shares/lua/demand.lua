-- Say what an experiment wants of the fleet, and hear what it may have; or divide the fleet for all.
--
-- KEYS  1 demands  2 quotas  3 shares
-- ARGV  1 token of the experiment  2 its demand, or '' for none any more  3 milliseconds for which it holds  4 name of the experiment
--       5 number with which the caller divides, or ''  6 version of the crews that the caller knows, or ''  7 milliseconds for which the
--       caller divides unless it publishes shares
--
-- The demand is kept with the patterns of all quotas and caps that the name fits. Who has a share in the table gets that: {'', its share, the
-- crews of the register, or '' if they are of that version}. Anybody else divides from now on, under a number that nobody else ever has: who
-- comes new, all when the table has run out, and who has divided last: {number, a list of each token and demand that holds, with the time
-- up to which it does and the patterns, each quota and its value, crews, busy, for how many milliseconds these are known}. The table of who
-- divides and leaves runs out at once. Repeating a call does no harm.

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
