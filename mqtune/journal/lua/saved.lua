-- Append that checkpoints were saved without a report.
--
-- KEYS  1 meta  2 journal  3 trial
-- ARGV  1 channel  2 attempt  3 token  then for each checkpoint: its id, the event
--
-- Returns the attempt's orders, with 'wait' while the journal is full; 'fenced' if the attempt does not hold the lease.
-- Idempotent by the last of the checkpoints, unless the attempt has saved another one in between.

local have = redis.call('HMGET', KEYS[3], 'attempt', 'token', 'state', 'orders', 'saved')
if have[1] ~= ARGV[2] or have[2] ~= ARGV[3] or have[3] ~= 'running' then return 'fenced' end
if have[5] ~= ARGV[#ARGV - 1] then
  redis.call('HSET', KEYS[3], 'saved', ARGV[#ARGV - 1])
  for i = 5, #ARGV, 2 do append(KEYS[1], KEYS[2], ARGV[1], ARGV[i]) end
end
return or_wait(have[4], wait_if_full(KEYS[1]))
