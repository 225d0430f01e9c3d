-- A worker says that an attempt is over and its process group gone; its lease ends.
--
-- KEYS  1 meta  2 journal  3 trial  4 leases  5 quotas
-- ARGV  1 channel  2 trial  3 attempt  4 token  5 event  6 experiment  7 the number of its last report
--
-- Returns 'ended'; 'fenced' when the attempt is not the one that holds the lease; or 'gap' when that report is not here, and then does
-- nothing. Repeating a call does no harm.

local have = redis.call('HMGET', KEYS[3], 'attempt', 'token', 'state', 'ended_by', 'sequence')
if have[1] ~= ARGV[3] or have[2] ~= ARGV[4] or have[2] == '' then return 'fenced' end
if have[3] == 'ended' then return have[4] == ARGV[4] and 'ended' or 'fenced' end
if number(have[5], 0) < tonumber(ARGV[7]) then return 'gap' end
also_when_full('ZREM', KEYS[4])
redis.call('HSET', KEYS[3], 'state', 'ended', 'orders', '', 'ended_by', ARGV[4])
retire(KEYS[3])
redis.call('ZREM', KEYS[4], ARGV[2])
for _, key in ipairs(quotas_of(KEYS[5], ARGV[6])) do
  redis.call('ZREM', key, ARGV[6] .. '/' .. ARGV[2])
end
append(KEYS[1], KEYS[2], ARGV[1], ARGV[5])
return 'ended'
