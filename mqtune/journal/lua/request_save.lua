-- Request that a running attempt saves a checkpoint; its worker gets a hint.
--
-- KEYS  1 driver  2 meta  3 trial
-- ARGV  1 epoch  2 trial  3 attempt  4 mark, unique to this request  5 what control channels start with  6 experiment
--
-- Returns 1, or 0 when the attempt doesn't run; an error STALEDRIVER when a later driver exists. Idempotent by the mark,
-- as long as there is no other request in between. The answers to report and renew repeat the last request until the end.

local refused = stale(KEYS[1], ARGV[1])
if refused then return refused end
also_when_full('HDEL', KEYS[1])
local have = redis.call('HMGET', KEYS[3], 'attempt', 'state', 'worker', 'wished', 'saves')
if have[1] ~= ARGV[3] or have[2] ~= 'running' then return 0 end
if have[4] ~= ARGV[4] then
  local saves = number(have[5], 0) + 1
  redis.call('HSET', KEYS[3], 'wished', ARGV[4], 'saves', saves)
  look_again(KEYS[2], have[3])
  hint(ARGV[5] .. have[3], { { ARGV[6], ARGV[2], tonumber(ARGV[3]), 'save:' .. saves } })
end
return 1
