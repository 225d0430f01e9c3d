-- Renew the leases of the attempts of a worker's last renewal, if nothing that it was answered has changed since.
--
-- KEYS  1 meta  2 leases  3 quotas
-- ARGV  1 lease in milliseconds  2 experiment  3 the worker  4 mark of its last renewal, then the trial of each attempt
--
-- Returns 1 when they are renewed, and each answer is what it was; 0 when renew is to look at each attempt, and does nothing.
-- Repeating a call does no harm.

local have = redis.call('HMGET', KEYS[1], 'renewed:' .. ARGV[3], 'relooks')
if have[1] ~= ARGV[4] .. ' ' .. (have[2] or '0') or undriven(KEYS[1]) == 'stop' then return 0 end
also_when_full('ZREM', KEYS[2])
local trials = {}
for i = 5, #ARGV do trials[#trials + 1] = ARGV[i] end
lease(KEYS[2], quotas_of(KEYS[3], ARGV[2]), ARGV[2], trials, now_ms() + ARGV[1])
return 1
