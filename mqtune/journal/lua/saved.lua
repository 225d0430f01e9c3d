-- Append that a checkpoint was saved without a report.
--
-- KEYS  1 meta  2 journal  3 trial
-- ARGV  1 channel  2 attempt  3 token  4 checkpoint  5 event
--
-- Returns the intent ('' for run) or 'save:<n>'; 'fenced' when the attempt is not the one that holds the lease.
-- Idempotent by the checkpoint, as long as the attempt has saved no other in between.

local have = redis.call('HMGET', KEYS[3], 'attempt', 'token', 'state', 'intent', 'saves', 'saved')
if have[1] ~= ARGV[2] or have[2] ~= ARGV[3] or have[3] ~= 'running' then return 'fenced' end
if have[6] ~= ARGV[4] then
  redis.call('HSET', KEYS[3], 'saved', ARGV[4])
  append(KEYS[1], KEYS[2], ARGV[1], ARGV[5])
end
return told(have[4], have[5])
