-- Say what an experiment wants of the fleet, and hear what all want.
--
-- KEYS  1 demands  2 quotas
-- ARGV  1 token of the experiment  2 its demand, or '' for none any more  3 milliseconds for which it holds
--
-- Returns a list of each token and demand that holds, and one of each quota and how many attempts it allows. Repeating a call does no
-- harm.

also_when_full('HDEL', KEYS[1])
local now = now_ms()
if ARGV[2] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
else
  redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f ', now + ARGV[3]) .. ARGV[2])
end
local found = {}
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local holds_until, demand = string.match(all[i + 1], '^(%d+) (.*)$')
  if holds_until and tonumber(holds_until) > now then
    found[#found + 1] = all[i]
    found[#found + 1] = demand
  else
    redis.call('HDEL', KEYS[1], all[i])
  end
end
return { found, redis.call('HGETALL', KEYS[2]) }
