-- Record that a worker may not run a submission. Others may.
--
-- KEYS  1 submission
-- ARGV  1 worker  2 signature of the submission that it has read  3 reason  4 number of remembered workers
--
-- Returns 1; or 0, without any change, if no submission with that signature waits or runs, or the refusal is known.
-- Idempotent.

also_when_full('HDEL', KEYS[1])
local have = redis.call('HMGET', KEYS[1], 'state', 'signature', 'refused')
if have[1] ~= 'waiting' and have[1] ~= 'running' or (have[2] or '') ~= ARGV[2] then return 0 end
local refused = {}
for each in string.gmatch(have[3] or '', '[^\n]+') do
  if each == ARGV[1] then return 0 end
  refused[#refused + 1] = each
end
refused[#refused + 1] = ARGV[1]
while #refused > tonumber(ARGV[4]) do table.remove(refused, 1) end
redis.call('HSET', KEYS[1], 'refused', table.concat(refused, '\n'), 'refusal', ARGV[3])
return 1
